"""What quiet ticks cost: the first one, those after it, and the memory they take.

A *quiet* tick has nothing to do. Ticks are 10 s apart by the clock that the runner is given, so
every sixth of them finds all periodic jobs due. Between the ticks a share of the tables is opened
with `DeltaTable`, until all have been: what else the machine does then weighs on both alike.
*Processor* seconds leave out the time that other programs took.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.crowd import fill_log
from benchmarks.probe import COMMITS
from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.runner import Runner
from iscp_dagster.rules.candidates import Headline
from iscp_dagster.rules.model import Table

TICK = timedelta(seconds=10)
QUIET_TICKS = 13


@dataclass(frozen=True, slots=True)
class QuietFigures:
    """Quiet ticks over so many tables and jobs."""

    tables: int
    jobs: int
    first_seconds: float
    """The first tick, which reads the whole log and looks at every table."""
    median_seconds: float
    slowest_seconds: float
    processor_seconds: float
    """The median again, on the processor."""
    processor_slowest: float
    open_seconds: float
    """Opening every table with `DeltaTable`."""
    first_megabytes: float
    """What the first tick adds to the process."""
    most_megabytes: float
    """The process at its largest, the libraries included."""
    summary: str
    """What the last tick said."""
    all_unchanged: bool

    @property
    def seconds_per_job(self) -> float:
        """The processor's time for a quiet tick, for each job."""
        return self.processor_seconds / self.jobs

    @property
    def times_less(self) -> float:
        """How much less a quiet tick takes than opening the tables."""
        return self.open_seconds / self.median_seconds


def measure_quiet(folder: Path, tables: Sequence[Table], jobs_per_table: int) -> QuietFigures:
    """Measure in a process of its own, so that the memory is that of these ticks."""
    url = fill_log(folder / f"quiet-{len(tables)}.db", tables, jobs_per_table, COMMITS - 1)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(_measure, url, [table.uri for table in tables]).result()


def _measure(url: str, uris: Sequence[str]) -> QuietFigures:
    now = datetime.now(UTC)
    with JobLog(url) as log:
        runner = Runner(log)
        before = _megabytes()
        begin = time.perf_counter()
        tick = runner.tick([], now)
        first_seconds = time.perf_counter() - begin
        after = _megabytes()
        seconds: list[float] = []
        processor: list[float] = []
        open_seconds = 0.0
        for number in range(QUIET_TICKS):
            now += TICK
            begin, processor_begin = time.perf_counter(), time.process_time()
            tick = runner.tick([], now)
            seconds.append(time.perf_counter() - begin)
            processor.append(time.process_time() - processor_begin)
            open_seconds += _seconds_to_open(uris[number::QUIET_TICKS])
    return QuietFigures(
        tables=sum(tick.plan.counts.values()),
        jobs=len(runner.jobs),
        first_seconds=first_seconds,
        median_seconds=statistics.median(seconds),
        slowest_seconds=max(seconds),
        processor_seconds=statistics.median(processor),
        processor_slowest=max(processor),
        open_seconds=open_seconds,
        first_megabytes=after - before,
        most_megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        summary=tick.plan.summary(),
        all_unchanged=tick.plan.counts == {Headline.UNCHANGED: len(uris)},
    )


def _seconds_to_open(uris: Sequence[str]) -> float:
    begin = time.perf_counter()
    for uri in uris:
        DeltaTable(uri).version()
    return time.perf_counter() - begin


def _megabytes() -> float:
    """What the process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20

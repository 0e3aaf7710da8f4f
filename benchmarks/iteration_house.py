"""A home with a Spark session, and iterations run in it as a Dagster run runs them.

*Processor* seconds are those of this process and of its JVM: what other programs took of a busy
machine is not in them.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from iscp_dagster import api
from iscp_dagster.iteration.request import IterationReport, IterationRequest, Tools
from iscp_dagster.iteration.run import IterationRun
from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import TS, Job, TableKey, Window
from iscp_dagster.settings import Settings
from iscp_dagster.sources.delta_log import open_log
from iscp_dagster.spark.session import get_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Timing:
    """How long something took."""

    seconds: float = 0.0
    processor: float = 0.0


@contextmanager
def timed() -> Iterator[Timing]:
    """Measure a block; the figures are there after it."""
    timing, started, busy = Timing(), time.perf_counter(), _processor_seconds()
    yield timing
    timing.seconds = time.perf_counter() - started
    timing.processor = _processor_seconds() - busy


@dataclass(frozen=True)
class Ran:
    """One iteration."""

    timing: Timing
    report: IterationReport
    source_bytes: int


@dataclass
class House:
    """A home of this benchmark's own; one table at a time, each in an account of its own."""

    folder: Path
    settings: Settings
    spark: SparkSession
    log: JobLog
    stands_at: dict[str, TS] = field(default_factory=dict)

    @staticmethod
    def open(folder: Path, **variables: str) -> House:
        """Start a session and an empty log."""
        settings = Settings.from_env({"ISCP_HOME": str(folder / "home"), **variables})
        return House(folder, settings, get_spark(settings), JobLog.open(settings))

    def source(self, table: str) -> str:
        """Where a table is."""
        return str(self.folder / table)

    def add(self, table: str, pk: str, specs: Mapping[str, Mapping[str, Any]]) -> None:
        """Record a table that was written, and register its jobs."""
        api.add_table(f"bench.{table}", uri=self.source(table), pk=[pk], log=self.log)
        for name, spec in specs.items():
            api.register_job(f"bench.{table}", name, spec, log=self.log)
        self.stands_at[table] = TS.zero()

    def start_anew(self, table: str) -> None:
        """Give every job of a table a new, empty generation."""
        ours = TableKey.parse(f"bench.{table}")
        jobs = [job for job in api.get_jobs(log=self.log) if isinstance(job, Job)]
        for job in (job for job in jobs if job.key.table_key == ours):
            api.unregister_job(f"bench.{table}", job.key.name, log=self.log)
            api.register_job(f"bench.{table}", job.key.name, job.spec, log=self.log)
        self.stands_at[table] = TS.zero()

    def catch_up(self, table: str, names: Sequence[str]) -> Ran:
        """Bring the jobs of a table to its newest version, in one iteration."""
        end = self.head(table)
        run_id = uuid.uuid4().hex
        window = Window(self.stands_at[table], end)
        request = IterationRequest(TableKey.parse(f"bench.{table}"), window, tuple(names), run_id)
        tools = Tools(
            log=self.log,
            settings=self.settings,
            spark=lambda: self.spark,
            is_alive=lambda _: False,
            silence=lambda _: None,
            now=lambda: datetime.now(UTC),
        )
        with timed() as timing:
            report = IterationRun(request, tools).run()
        for job in report.jobs:
            if job.error is not None:
                raise job.error
        self.stands_at[table] = end
        return Ran(timing, report, first_read(self.spark, f"iscp-{run_id}"))

    def head(self, table: str) -> TS:
        """The newest point in a table's history."""
        uri = self.source(table)
        return open_log(uri, {}).read(DeltaTable(uri).version(), 1, None)[0].commit.ts


def first_read(spark: SparkSession, tag: str) -> int:
    """Bytes that a tag's first reading stage took from files: later ones read what is persisted.

    0 over Connect, where nobody can ask.
    """
    context: Any = getattr(spark, "_sc", None)
    if context is None:
        return 0
    store = context._jsc.sc().statusStore()
    stages: set[int] = set()
    for job in _each(store.jobsList(None)):
        if tag in set(_each(job.jobTags())):
            stages |= set(_each(job.stageIds()))
    none = context._gateway.new_array(context._gateway.jvm.double, 0)
    listed = _each(store.stageList(None, False, False, none, None))
    read = {s.stageId(): s.inputBytes() for s in listed if s.stageId() in stages}
    reading = [stage for stage, size in read.items() if size > 0]
    return read[min(reading)] if reading else 0


def _each(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _processor_seconds() -> float:
    """Of this process and its children that run now."""
    mine = os.getpid()
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat.parent.name) == mine or int(after[1]) == mine:
            total += (int(after[11]) + int(after[12])) / _TICKS
    return total

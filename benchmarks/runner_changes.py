"""Whether the runner starts the right runs, in the right order, and nothing else.

Some tables change; ticks follow until all of them are caught up. The runs are *played*: one claims
its jobs in the log, holds its slot for a tick or two and records the new watermarks, each write a
compare-and-set as a real run's. What is not as it should be is collected as a sentence.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.crowd import fill_log
from benchmarks.probe import COMMITS, commit_to
from benchmarks.runner_quiet import TICK
from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.runner import Runner, Tick
from iscp_dagster.rules.candidates import Headline
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import InFlight, Job, JobState, Table, TableKey

CHANGED_TABLES = 100
MAX_RUNS = 4
PRIORITIES = 3
_MOST_TICKS = 10 * CHANGED_TABLES


@dataclass(frozen=True, slots=True)
class ChangeFigures:
    """What happened from the change until all were caught up."""

    tables: int
    changed: int
    first_seconds: float
    """The tick that found the changes."""
    median_seconds: float
    """The ticks after it, while runs start and end."""
    ticks: int
    runs: int
    wrong: tuple[str, ...]


def measure_changes(folder: Path, tables: Sequence[Table], jobs_per_table: int) -> ChangeFigures:
    """Commit to some tables, then tick and play the runs until all are caught up."""
    url = fill_log(folder / "changes.db", tables, jobs_per_table, COMMITS - 1, _priority)
    chosen = random.Random(20261118).sample(tables, min(CHANGED_TABLES, len(tables)))
    # Sorting is stable: within a priority, the first to be written to has waited longest.
    expected = [table.key for table in sorted(chosen, key=_priority, reverse=True)]
    with JobLog(url) as log:
        story = _Story(log, frozenset(expected))
        story.tick()
        story.expect(not story.started, "a run was asked for before anything changed")
        for table in chosen:
            commit_to(table)
        story.seconds.clear()
        tick = story.tick()
        story.expect(tick.changed.keys() == set(expected), "other tables are seen to change")
        story.expect(_planned(tick) == set(expected), "other tables are planned than changed")
        while tick.plan.counts != {Headline.UNCHANGED: len(tables)}:
            if len(story.seconds) == _MOST_TICKS:
                story.wrong.append(f"not caught up after {_MOST_TICKS} ticks: {tick.plan}")
                break
            story.play()
            tick = story.tick()
        firsts = list(dict.fromkeys(iteration.table for iteration in story.started))
        story.expect(firsts == expected, "tables did not start in the order of priority and lag")
        story.expect(_caught_up(log, expected), "the log has jobs that are not caught up")
    return ChangeFigures(
        tables=len(tables),
        changed=len(chosen),
        first_seconds=story.seconds[0],
        median_seconds=statistics.median(story.seconds[1:]),
        ticks=len(story.seconds),
        runs=len(story.started),
        wrong=tuple(dict.fromkeys(story.wrong)),
    )


@dataclass(slots=True)
class _Run:
    """A run that is played."""

    flight: InFlight
    held: list[Job]
    ticks_left: int


class _Story:
    """Ticks, the runs that they ask for, and what was wrong with them."""

    def __init__(self, log: JobLog, may_start: frozenset[TableKey]) -> None:
        self._log = log
        self._runner = Runner(log)
        self._may_start = may_start
        self._now = datetime.now(UTC)
        self._flying: list[_Run] = []
        self.started: list[Iteration] = []
        self.seconds: list[float] = []
        self.wrong: list[str] = []

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note what is wrong when it does not hold."""
        if not holds:
            self.wrong.append(otherwise)

    def tick(self) -> Tick:
        """Run one tick, and start what it asks for."""
        self._now += TICK
        flights = [run.flight for run in self._flying]
        free = MAX_RUNS - len(flights)
        begin = time.perf_counter()
        tick = self._runner.tick(flights, self._now, free_slots=free)
        self.seconds.append(time.perf_counter() - begin)
        starting, waiting = tick.plan.iterations, tick.plan.waiting
        order = [(-one.priority, one.waiting_since) for one in (*starting, *waiting)]
        self.expect(order == sorted(order), "a tick is not in the order of priority and lag")
        self.expect(len(starting) <= free, "more runs are asked for than slots are free")
        self.expect(len(starting) == free or not waiting, "an iteration waits beside a free slot")
        self.expect(_planned(tick) <= self._may_start, "a table that did not change is planned")
        for iteration in starting:
            self._start(iteration)
        return tick

    def play(self) -> None:
        """Let a tick's time pass for the runs; those that are through record their jobs."""
        for run in self._flying:
            run.ticks_left -= 1
            if run.ticks_left == 0:
                self._write(run, state=JobState.COMPLETED, watermark=run.flight.window.end)
        self._flying = [run for run in self._flying if run.ticks_left]

    def _start(self, iteration: Iteration) -> None:
        number = len(self.started)
        flight = InFlight(
            run_id=f"run-{number:06d}",
            table=iteration.table,
            window=iteration.window,
            job_names=iteration.job_names,
            kind=iteration.kind,
            attempt=iteration.attempt,
            started=True,
        )
        jobs = [self._runner.logged[job_id] for job_id in iteration.job_ids]
        # Runs that last differently give their slots back one by one.
        run = _Run(flight, jobs, ticks_left=2 if number % 3 == 0 else 1)
        self._write(run, state=JobState.RUNNING)
        self._flying.append(run)
        self.started.append(iteration)

    def _write(self, run: _Run, **changes: object) -> None:
        written = self._log.jobs.compare_and_set_many((job, changes) for job in run.held)
        self.expect(None not in written, "a job moved under its run")
        run.held = [job for job in written if job is not None]


def _planned(tick: Tick) -> set[TableKey]:
    return {iteration.table for iteration in (*tick.plan.iterations, *tick.plan.waiting)}


def _priority(table: Table) -> int:
    return table.table_id % PRIORITIES


def _caught_up(log: JobLog, changed: Sequence[TableKey]) -> bool:
    rows = [row for key in changed for row in log.jobs.list(table=key)]
    return all(isinstance(row, Job) and row.watermark.version == COMMITS for row in rows)

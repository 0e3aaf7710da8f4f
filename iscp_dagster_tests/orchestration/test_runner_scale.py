"""What a tick does, counted: calls, steps of the database and questions to the file system.

Counts are the same on every machine, busy or not; `benchmarks/runner.py` has the seconds.
"""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from benchmarks.crowd import fill_log
from benchmarks.probe import COMMITS, commit_to, make_tables
from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.runner import Runner, Tick
from iscp_dagster.rules.model import Table

TABLES, JOBS_PER_TABLE = 1_000, 10
FEW_TABLES = 100
STEPS = 100
"""How many steps of SQLite count as one: a look into an index takes fewer."""


@dataclass
class Crowd:
    """A runner over many tables that are caught up, and a clock."""

    tables: list[Table]
    log: JobLog
    runner: Runner = field(init=False)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        self.runner = Runner(self.log)

    def tick(self, seconds: float = 1) -> Tick:
        self.now += timedelta(seconds=seconds)
        return self.runner.tick([], self.now)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Table]:
    """Real Delta tables, which no test changes."""
    return make_tables(tmp_path_factory.mktemp("crowd"), TABLES)


@pytest.fixture
def crowd_of(tables: list[Table], tmp_path: Path) -> Iterator[Callable[[int], Crowd]]:
    """Make a crowd of so many tables."""
    logs: list[JobLog] = []

    def make(count: int) -> Crowd:
        chosen = tables[:count]
        logs.append(JobLog(fill_log(tmp_path / f"{count}.db", chosen, JOBS_PER_TABLE, COMMITS - 1)))
        return Crowd(chosen, logs[-1])

    yield make
    for log in logs:
        log.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Count the questions about each path in a Delta log, by function."""
    counted: Counter[tuple[str, str]] = Counter()

    def count(module: object, name: str) -> None:
        real = getattr(module, name)

        def counting(path, *args, **kwargs):
            if "_delta_log" in str(path):
                counted[name, str(path)] += 1
            return real(path, *args, **kwargs)

        monkeypatch.setattr(module, name, counting)

    for name in ("stat", "lstat", "access", "scandir", "listdir", "open"):
        count(os, name)
    count(io, "open")
    return counted


@pytest.fixture
def database_steps() -> Iterator[Counter[str]]:
    """Count what SQLite does, in hundreds of steps, on connections that are opened from now on."""
    counted: Counter[str] = Counter()

    def watch(connection, _record) -> None:
        connection.set_progress_handler(lambda: counted.update(["steps"]), STEPS)

    event.listen(Engine, "connect", watch)
    yield counted
    event.remove(Engine, "connect", watch)


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count the calls of functions, Python's and C's."""
    counted: Counter[str] = Counter()
    sys.setprofile(lambda _frame, kind, _arg: counted.update([kind]))
    try:
        yield counted
    finally:
        sys.setprofile(None)
        for kind in ("return", "c_return", "c_exception"):
            counted.pop(kind, None)


def test_a_quiet_tick_reads_no_row_of_the_log(crowd_of, database_steps: Counter[str]):
    crowd = crowd_of(TABLES)
    crowd.tick()
    assert database_steps["steps"] > TABLES * JOBS_PER_TABLE / STEPS
    database_steps.clear()
    tick = crowd.tick()
    assert str(tick.plan) == f"{TABLES} tables: {TABLES} unchanged"
    assert database_steps["steps"] == 0


def test_a_quiet_tick_asks_the_disk_twice_for_each_table_and_reads_nothing(
    crowd_of, asked: Counter[tuple[str, str]]
):
    crowd = crowd_of(TABLES)
    crowd.tick()
    asked.clear()
    for _ in range(3):
        crowd.tick()
    assert 3 * TABLES <= asked.total() <= 3 * 2.1 * TABLES
    assert {name for name, _ in asked} == {"stat", "access", "scandir"}


def test_the_work_of_a_quiet_tick_grows_with_the_tables_and_no_faster(crowd_of):
    small, large = (_calls_of_quiet_ticks(crowd_of(count)) for count in (FEW_TABLES, TABLES))
    assert small * 5 < large < small * 1.1 * (TABLES / FEW_TABLES)


def test_a_changed_row_of_the_log_costs_nothing_for_the_other_tables(crowd_of):
    small, large = (_calls_of_a_changed_row(crowd_of(count)) for count in (FEW_TABLES, TABLES))
    assert 0 < large < small + TABLES


def test_a_tick_plans_the_tables_that_changed_and_opens_no_other(
    tmp_path: Path, asked: Counter[tuple[str, str]]
):
    tables = make_tables(tmp_path, FEW_TABLES)
    changed = tables[::7]
    with JobLog(fill_log(tmp_path / "log.db", tables, JOBS_PER_TABLE, COMMITS - 1)) as log:
        crowd = Crowd(tables, log)
        crowd.tick()
        for table in changed:
            commit_to(table)
        asked.clear()
        tick = crowd.tick()
    keys = {table.key for table in changed}
    assert {iteration.table for iteration in tick.plan.iterations} == keys
    assert tick.changed.keys() == keys
    opened = {path for name, path in asked if name == "open"}
    assert opened
    assert all(any(path.startswith(f"{table.uri}/") for table in changed) for path in opened)


def test_periodic_jobs_that_are_due_on_quiet_tables_are_checked_without_planning_them(crowd_of):
    crowd = crowd_of(FEW_TABLES)
    crowd.tick()
    tick = crowd.tick(seconds=60)
    assert str(tick.plan) == f"{FEW_TABLES} tables: {FEW_TABLES} unchanged"
    assert not tick.plan.notable
    assert {moved.time for moved in tick.plan.moves.values()} == {crowd.now}
    periodic = [job for job, _ in tick.plan.reasons() if job.spec.trigger.kind == "periodic"]
    assert tick.plan.moves.keys() == {job.job_id for job in periodic}
    assert len(periodic) == FEW_TABLES
    assert tick.plan.reason(periodic[0].key) == f"unchanged at v{COMMITS - 1}; due in 60 s"
    assert not crowd.tick().plan.moves


def _calls_of_quiet_ticks(crowd: Crowd) -> int:
    crowd.tick()
    with counted_calls() as calls:
        for _ in range(3):
            crowd.tick()
    return calls.total()


def _calls_of_a_changed_row(crowd: Crowd) -> int:
    """Return how many calls more than a quiet tick the tick after a change takes."""
    crowd.tick()
    crowd.tick()
    with counted_calls() as quiet:
        crowd.tick()
    crowd.log.jobs.pause(crowd.tables[0].key.job("job-0"), crowd.now)
    with counted_calls() as after:
        tick = crowd.tick()
    assert tick.plan.notable
    return after.total() - quiet.total()

"""A small world to try the rules on: tables that change, a log, runs that end in every way.

What a plan says is done to the letter, with indexes that remember which versions they took in, so
that a version skipped, applied twice or read after it is gone stops the test at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from iscp_dagster.rules.model import (
    TS,
    Commit,
    History,
    InFlight,
    IterationKind,
    Job,
    JobKey,
    JobState,
    TableKey,
)
from iscp_dagster.rules.outcome import Outcome, lost, outcome_of
from iscp_dagster.rules.plan import Iteration, Plan, plan
from iscp_dagster_tests.rules.builders import NOW, job

TICK = timedelta(seconds=10)


@dataclass
class Source:
    """A table: its commits, and how much of its log is left."""

    commits: list[Commit]
    first_version: int = 0

    @property
    def head(self) -> TS:
        return self.commits[-1].ts

    def probe(self) -> History:
        return History(self.head, self.first_version, tuple(self.commits[self.first_version :]))

    def changed(self, after: int, upto: int) -> list[int]:
        return [c.version for c in self.commits[after + 1 : upto + 1] if c.data_change]


@dataclass
class Index:
    """The versions that changed data and are in the index, in the order they came."""

    stands_at: int = -1
    versions: list[int] = field(default_factory=list)


class World:
    """Tables, a log and what runs; time moves only in `tick` and `wait`."""

    def __init__(self, tables: Iterable[TableKey], seed: int = 0) -> None:
        self.now = NOW
        self.sources = {key: Source([Commit(0, NOW, True, 1)]) for key in tables}
        self.log: dict[int, Job] = {}
        self.memory: dict[int, TS] = {}
        self.indexes: dict[int, Index] = {}
        self.flights: dict[str, tuple[InFlight, Iteration]] = {}
        self.spent: set[str] = set()
        self.random = random.Random(seed)

    def commit(self, table: TableKey, *, data: bool = True, size: int = 1) -> None:
        source = self.sources[table]
        source.commits.append(Commit(len(source.commits), self.now, data, size))

    def forget(self, table: TableKey, before: int) -> None:
        """The table's log loses what is before a version."""
        source = self.sources[table]
        source.first_version = max(source.first_version, min(before, source.head.version))

    def register(self, table: TableKey, name: str, **spec) -> bool:
        if any(row.key == table.job(name) and row.drop_at is None for row in self.log.values()):
            return False
        job_id = len(self.log) + 1
        self.log[job_id] = job(name, table=table, job_id=job_id, create_at=self.now, **spec)
        self.indexes[job_id] = Index()
        return True

    def live(self) -> list[Job]:
        return [row for row in self.log.values() if row.drop_at is None]

    def find(self, key: JobKey) -> Job:
        return next(row for row in self.live() if row.key == key)

    def watermark(self, key: JobKey) -> int:
        row = self.find(key)
        return self.memory.get(row.job_id, row.watermark).version

    def write(self, job_id: int, **changes) -> None:
        row = self.log[job_id]
        self.log[job_id] = replace(row, lsn=row.lsn + 1, **changes)

    def jobs(self) -> list[Job]:
        """The log as the runner sees it: with the watermarks moved in memory, in any order."""
        rows = [
            replace(row, watermark=self.memory.get(row.job_id, row.watermark))
            for row in self.log.values()
        ]
        self.random.shuffle(rows)
        return rows

    def in_flight(self) -> list[InFlight]:
        return [flight for flight, _ in self.flights.values()]

    def probe(self) -> dict[TableKey, History]:
        return {key: source.probe() for key, source in self.sources.items()}

    def tick(self, free_slots: int | None = None) -> Plan:
        """Plan, then do what the plan says."""
        self.now += TICK
        planned = plan(self.jobs(), self.probe(), self.in_flight(), self.now, free_slots=free_slots)
        for job_id, moved in planned.moves.items():
            row, source = self.log[job_id], self.sources[self.log[job_id].key.table_key]
            was = self.memory.get(job_id, row.watermark)
            assert not source.changed(was.version, moved.version), "moved over a change"
            self.memory[job_id] = moved
        for job_id in planned.orphans:
            self._record(job_id, lost(self.log[job_id], self.now))
        for iteration in planned.iterations:
            self._start(iteration)
        return planned

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def end(self, run_id: str, error: BaseException | None = None, failing: Iterable[str] = ()):
        """A run ends: for all its jobs with `error`, or with one for those in `failing`."""
        _, iteration = self.flights.pop(run_id)
        for job_id, name in zip(iteration.job_ids, iteration.job_names, strict=True):
            row = self.log[job_id]
            if row.drop_at is not None:
                continue
            problem = error or (TimeoutError(name) if name in failing else None)
            if problem is None:
                self._apply(row, iteration)
            self._record(job_id, outcome_of(row, iteration.window, problem, self.now))

    def kill(self, run_id: str) -> None:
        """A run dies without a word."""
        del self.flights[run_id]

    def restart(self) -> None:
        """The runner forgets what it had only in memory."""
        self.memory.clear()

    def flush(self) -> None:
        for job_id, moved in self.memory.items():
            if self.log[job_id].watermark < moved:
                self.write(job_id, watermark=moved)

    def repair(self, row: Job) -> None:
        state = JobState.COMPLETED if row.state is JobState.ERROR else row.state
        self.write(row.job_id, next_attempt_at=None, attempt=0, state=state)

    def heal(self) -> None:
        """Resume and repair everything, and let runs end well from now on."""
        for row in self.live():
            self.write(row.job_id, paused_at=None)
            self.repair(self.log[row.job_id])
        for run_id in list(self.flights):
            self.end(run_id)

    def settle(self, ticks: int = 300) -> None:
        """Tick until nothing is left to do."""
        for _ in range(ticks):
            planned = self.tick()
            busy = planned.iterations or planned.waiting or planned.orphans
            if not busy and not self.flights and all(self._is_done(row) for row in self.live()):
                return
            for run_id in list(self.flights):
                self.end(run_id)
        left = [f"{row.key}: v{self.watermark(row.key)}" for row in self.live()]
        raise AssertionError(f"not settled after {ticks} ticks: {left}")

    def _is_done(self, row: Job) -> bool:
        return self.watermark(row.key) >= self.sources[row.key.table_key].head.version

    def _start(self, iteration: Iteration) -> None:
        assert iteration.run_key not in self.spent, "a run key is spent only once"
        self.spent.add(iteration.run_key)
        run_id = f"run-{len(self.spent)}"
        flight = InFlight(
            run_id=run_id,
            table=iteration.table,
            window=iteration.window,
            job_names=iteration.job_names,
            kind=iteration.kind,
            attempt=iteration.attempt,
            job_ids=iteration.job_ids,
        )
        self.flights[run_id] = (flight, iteration)
        for job_id in iteration.job_ids:
            self.write(job_id, state=JobState.RUNNING)

    def _apply(self, row: Job, iteration: Iteration) -> None:
        index, source = self.indexes[row.job_id], self.sources[row.key.table_key]
        start, end = iteration.window.start.version, iteration.window.end.version
        if iteration.kind is IterationKind.SNAPSHOT:
            index.versions = source.changed(-1, end)
        else:
            assert index.stands_at <= start, "applied twice"
            assert not source.changed(index.stands_at, start), "skipped"
            index.versions += source.changed(start, end)
        index.stands_at = end
        assert index.versions == source.changed(-1, end)

    def _record(self, job_id: int, outcome: Outcome) -> None:
        row = self.log[job_id]
        if outcome.state is JobState.COMPLETED and outcome.attempt == 0:
            self.memory.pop(job_id, None)
        self.write(
            job_id,
            state=outcome.state,
            watermark=outcome.watermark,
            stage=outcome.stage,
            attempt=outcome.attempt,
            next_attempt_at=outcome.next_attempt_at,
            status=replace(row.status, error_code=outcome.error_code, error_msg=outcome.error_msg),
        )

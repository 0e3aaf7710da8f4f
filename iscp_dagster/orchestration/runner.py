"""The runner: what a tick needs to remember, and the tick itself.

Between ticks it keeps the jobs as last read from the log, with their watermarks as moved in memory,
and the probe's knowledge of the tables. A tick reads only what changed in the log, asks the Delta
logs what is new, and plans. It changes nothing outside this process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from iscp_dagster.joblog import JobLog
from iscp_dagster.joblog.rows import UnreadableRow
from iscp_dagster.orchestration.triggers import load_triggers
from iscp_dagster.rules.hashing import shard_of
from iscp_dagster.rules.model import TS, History, InFlight, Job, JobState, Probed, Table, TableKey
from iscp_dagster.rules.plan import Plan, plan
from iscp_dagster.sources.probe import Probe, ProbeRequest

TICK_SECONDS = 40.0
"""Dagster gives a tick 60 s; what is not reached by then comes first at the next one."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick found and decided."""

    plan: Plan
    changed: dict[TableKey, TS]
    """Tables with a newer version than the runner had seen."""
    unreadable: tuple[UnreadableRow, ...]


class Runner:
    """Plans iterations for the tables of one shard."""

    def __init__(
        self,
        log: JobLog,
        *,
        shard: int = 0,
        shards: int = 1,
        only: frozenset[TableKey] | None = None,
    ) -> None:
        self._log = log
        self._only = only
        self._shard, self._shards = shard, shards
        self._probe = Probe()
        self._triggers = load_triggers()
        self._change_seq = 0
        self._jobs: dict[int, Job] = {}
        self._by_table: dict[TableKey, list[Job]] = {}
        self._tables: dict[TableKey, Table] = {}
        self._unreadable: dict[int, UnreadableRow] = {}
        self._heads: dict[TableKey, int] = {}
        self._logged: dict[int, Job] = {}

    @property
    def jobs(self) -> dict[int, Job]:
        """The live jobs by generation, with their watermarks as moved in memory."""
        return self._jobs

    @property
    def logged(self) -> dict[int, Job]:
        """The live jobs by generation, as the log has them."""
        return self._logged

    def tick(
        self, in_flight: Sequence[InFlight], now: datetime, *, free_slots: int | None = None
    ) -> Tick:
        """Read what changed, ask what is new, and plan."""
        deadline = time.monotonic() + TICK_SECONDS
        self._read_log()
        probed = self._probe.probe(self._requests(), deadline)
        decided = plan(
            self._by_table,
            probed,
            [flight for flight in in_flight if flight.table in self._by_table],
            now,
            free_slots=free_slots,
            triggers=self._triggers,
        )
        self._move(decided)
        return Tick(decided, self._changed(probed), tuple(self._unreadable.values()))

    def moved(self) -> list[tuple[Job, TS]]:
        """Return the jobs as the log has them, with the watermark that memory is ahead by."""
        return [
            (self._logged[job_id], job.watermark)
            for job_id, job in self._jobs.items()
            if job.watermark is not self._logged[job_id].watermark
        ]

    def _read_log(self) -> None:
        changes = self._log.jobs.changes(self._change_seq)
        touched: set[TableKey] = set()
        for row in (*changes.jobs, *changes.unreadable):
            touched.add(row.key.table_key)
            self._unreadable.pop(row.job_id, None)
            known = self._jobs.pop(row.job_id, None)
            logged = self._logged.pop(row.job_id, None)
            if not self._is_mine(row.key.table_key):
                continue
            if isinstance(row, UnreadableRow):
                self._unreadable[row.job_id] = row
            elif row.drop_at is None:
                self._logged[row.job_id] = row
                self._jobs[row.job_id] = _as_moved(row, known, logged)
        self._change_seq = changes.change_seq
        if touched:
            self._regroup(touched)

    def _regroup(self, touched: set[TableKey]) -> None:
        groups: dict[TableKey, list[Job]] = {key: [] for key in touched}
        for job in self._jobs.values():
            group = groups.get(job.key.table_key)
            if group is not None:
                group.append(job)
        for key, group in groups.items():
            if group:
                self._by_table[key] = group
            else:
                self._by_table.pop(key, None)
        if not touched <= self._tables.keys():
            self._tables = {table.key: table for table in self._log.tables.list()}
        self._probe.retain(self._by_table.keys())

    def _requests(self) -> list[ProbeRequest]:
        return [
            ProbeRequest.of(self._tables[key], _wanted_versions(group))
            for key, group in self._by_table.items()
            if key in self._tables
        ]

    def _move(self, decided: Plan) -> None:
        for job_id, watermark in decided.moves.items():
            job = self._jobs[job_id]
            moved = self._jobs[job_id] = replace(job, watermark=watermark)
            group = self._by_table[job.key.table_key]
            self._by_table[job.key.table_key] = [
                moved if one.job_id == job_id else one for one in group
            ]

    def _changed(self, probed: dict[TableKey, Probed]) -> dict[TableKey, TS]:
        changed: dict[TableKey, TS] = {}
        for key, found in probed.items():
            if not isinstance(found, History):
                continue
            seen = self._heads.get(key)
            if seen is None:
                seen = max(job.watermark.version for job in self._by_table[key])
            if found.head.version > seen:
                changed[key] = found.head
            self._heads[key] = found.head.version
        return changed

    def _is_mine(self, table: TableKey) -> bool:
        if self._only is not None and table not in self._only:
            return False
        return self._shards == 1 or shard_of(table, self._shards) == self._shard


def _as_moved(row: Job, known: Job | None, logged: Job | None) -> Job:
    """Keep what memory knows better: between the two watermarks nothing changed.

    A watermark that the log has set back is another matter: the store lost what was after it.
    """
    if known is None or logged is None or row.watermark < logged.watermark:
        return row
    return replace(row, watermark=known.watermark) if row.watermark <= known.watermark else row


def _wanted_versions(group: Sequence[Job]) -> list[int]:
    """Where commits are wanted from; a job that waits for its user wants none until then."""
    return [
        job.watermark.version
        for job in group
        if job.state is not JobState.ERROR and job.paused_at is None
    ]

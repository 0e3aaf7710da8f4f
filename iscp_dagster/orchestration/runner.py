"""The runner: what a tick needs to remember, and the tick itself.

Between ticks it keeps the jobs as last read from the log, with their watermarks as moved in memory,
and the probe's knowledge of the tables. A tick reads only what changed in the log, asks the Delta
logs what is new, and plans. It changes nothing outside this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from iscp_dagster.joblog import JobLog
from iscp_dagster.joblog.rows import UnreadableRow
from iscp_dagster.orchestration.triggers import load_triggers
from iscp_dagster.rules.hashing import shard_of
from iscp_dagster.rules.model import (
    TS,
    History,
    InFlight,
    Job,
    JobKey,
    JobState,
    Probed,
    ProbeFailed,
    Table,
    TableKey,
)
from iscp_dagster.rules.plan import Plan, plan
from iscp_dagster.sources.probe import Probe, ProbeRequest

TICK_SECONDS = 40.0
"""Dagster gives a tick 60 s; what is not reached by then comes first at the next one."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick found and decided."""

    plan: Plan
    changed: dict[TableKey, TS]
    """Tables with a newer version than Dagster was told of."""
    unreadable: tuple[UnreadableRow, ...]
    not_loaded: tuple[Job, ...]
    """Jobs that this code location does not know: left out of the plan, in nobody's way."""
    unprobed: dict[TableKey, str]
    """Tables that could not be asked this time, with the reason."""


class Runner:
    """Plans iterations for the tables of one shard."""

    def __init__(
        self,
        log: JobLog,
        *,
        shard: int = 0,
        shards: int = 1,
        only: frozenset[TableKey] | None = None,
        is_loaded: Callable[[JobKey], bool] | None = None,
    ) -> None:
        self._log = log
        self._only = only
        self._is_loaded = is_loaded
        self._shard, self._shards = shard, shards
        self._probe = Probe()
        self._triggers = load_triggers()
        self._change_seq = 0
        self._jobs: dict[int, Job] = {}
        self._by_table: dict[TableKey, list[Job]] = {}
        self._requests: dict[TableKey, ProbeRequest] = {}
        self._tables: dict[TableKey, Table] = {}
        self._unreadable: dict[int, UnreadableRow] = {}
        self._heads: dict[TableKey, int] = {}
        self._logged: dict[int, Job] = {}
        self._not_loaded: dict[int, Job] = {}

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
        probed = self._probe.probe(self._requests.values(), deadline)
        decided = plan(
            self._by_table,
            probed,
            [flight for flight in in_flight if flight.table in self._by_table],
            now,
            free_slots=free_slots,
            triggers=self._triggers,
        )
        self._move(decided)
        return Tick(
            plan=decided,
            changed=self._changed(probed),
            unreadable=tuple(self._unreadable.values()),
            not_loaded=tuple(self._not_loaded.values()),
            unprobed=self._unprobed(probed),
        )

    def told(self, tick: Tick) -> None:
        """Note that Dagster was told of a tick's changed tables; until then they stay changed."""
        self._heads.update((key, head.version) for key, head in tick.changed.items())

    def moved(self) -> list[tuple[Job, TS]]:
        """Return the jobs as the log has them, with the watermark that memory is ahead by."""
        return [
            (self._logged[job_id], job.watermark)
            for job_id, job in self._jobs.items()
            if job.watermark is not self._logged[job_id].watermark
        ]

    def _read_log(self) -> None:
        changes = self._log.jobs.changes(self._change_seq)
        rows = (*changes.jobs, *changes.unreadable)
        # All reads come before the first change here: a log that goes away between them loses
        # nothing, the next tick asks for the same rows again.
        self._read_tables(rows)
        for row in rows:
            known = self._jobs.pop(row.job_id, None)
            logged = self._logged.pop(row.job_id, None)
            self._unreadable.pop(row.job_id, None)
            self._not_loaded.pop(row.job_id, None)
            if not self._is_mine(row.key.table_key):
                continue
            if row.drop_at is not None:
                continue
            if isinstance(row, UnreadableRow):
                self._unreadable[row.job_id] = row
            elif self._is_loaded is None or self._is_loaded(row.key):
                self._logged[row.job_id] = row
                self._jobs[row.job_id] = _as_moved(row, known, logged)
            else:
                self._not_loaded[row.job_id] = row
        self._change_seq = changes.change_seq
        self._regroup(rows)

    def _read_tables(self, rows: Sequence[Job | UnreadableRow]) -> None:
        """Read the tables again when jobs are on one not seen yet; a name may get another table."""
        for row in rows:
            known = self._tables.get(row.key.table_key)
            if known is None or known.table_id != row.table_id:
                self._tables = {table.key: table for table in self._log.tables.list()}
                return

    def _regroup(self, rows: Sequence[Job | UnreadableRow]) -> None:
        """Bring the groups up to date; what is not touched costs nothing."""
        touched: dict[TableKey, set[int]] = {}
        for row in rows:
            touched.setdefault(row.key.table_key, set()).add(row.job_id)
        for key, job_ids in touched.items():
            group = [job for job in self._by_table.get(key, ()) if job.job_id not in job_ids]
            group += [self._jobs[job_id] for job_id in job_ids if job_id in self._jobs]
            self._set_group(key, group)
        if not touched.keys() <= self._by_table.keys():
            self._probe.retain(self._by_table.keys())

    def _set_group(self, key: TableKey, group: list[Job]) -> None:
        self._requests.pop(key, None)
        if not group:
            self._by_table.pop(key, None)
            self._heads.pop(key, None)
            return
        self._by_table[key] = group
        # A table that was dropped between two reads of the log is not asked.
        if key in self._tables:
            self._requests[key] = ProbeRequest.of(self._tables[key], _wanted_versions(group))

    def _move(self, decided: Plan) -> None:
        moved: dict[TableKey, None] = {}
        for job_id, watermark in decided.moves.items():
            job = self._jobs[job_id] = replace(self._jobs[job_id], watermark=watermark)
            moved[job.key.table_key] = None
        for key in moved:
            self._set_group(key, [self._jobs[job.job_id] for job in self._by_table[key]])

    def _changed(self, probed: dict[TableKey, Probed]) -> dict[TableKey, TS]:
        changed: dict[TableKey, TS] = {}
        for key, found in probed.items():
            if not isinstance(found, History):
                continue
            seen = self._heads.get(key)
            if seen is None:
                seen = max(job.watermark.version for job in self._by_table[key])
                self._heads[key] = seen
            if found.head.version > seen:
                changed[key] = found.head
        return changed

    def _unprobed(self, probed: dict[TableKey, Probed]) -> dict[TableKey, str]:
        failed = {
            key: found.reason for key, found in probed.items() if isinstance(found, ProbeFailed)
        }
        if len(probed) == len(self._by_table):
            return failed
        late = dict.fromkeys(self._by_table.keys() - probed.keys(), "not reached in this tick")
        return {**failed, **late}

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
    at, moved = row.watermark, known.watermark
    if (at.version, at.time) < (moved.version, moved.time):
        return replace(row, watermark=moved)
    return row


def _wanted_versions(group: Sequence[Job]) -> list[int]:
    """Where commits are wanted from; a job that waits for its user wants none until then."""
    return [
        job.watermark.version
        for job in group
        if job.state is not JobState.ERROR and job.paused_at is None
    ]

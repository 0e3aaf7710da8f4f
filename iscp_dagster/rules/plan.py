"""One tick: candidates -> changed only -> shared windows -> a plan that explains itself.

A *plan* is data: the iterations to start, those that wait for a free slot, the watermarks to move
in memory, the jobs that failed for good with their table, and a reason for every job. The same
input gives the same plan, in whatever order it comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import cast

from iscp_dagster.errors import IscpError, UnknownJob
from iscp_dagster.rules.candidates import Headline
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import TS, History, InFlight, Job, JobKey, JobState, Probed, TableKey
from iscp_dagster.rules.table_plan import TableDraft, plan_table
from iscp_dagster.rules.triggers import BUILT_IN, Trigger, in_seconds

__all__ = ["Iteration", "Plan", "plan"]

_SAID_FIRST = (
    Headline.STARTING,
    Headline.NO_SLOT,
    Headline.UNCHANGED,
    Headline.DUE,
    Headline.IN_FLIGHT,
)
_SENTENCE_ORDER = (*_SAID_FIRST, *(line for line in Headline if line not in _SAID_FIRST))


@dataclass(frozen=True)
class Plan:
    """What one tick decided."""

    now: datetime
    iterations: tuple[Iteration, ...]
    """To start, in this order."""
    waiting: tuple[Iteration, ...]
    """Next in line when a slot is free; `reason` says so."""
    moves: Mapping[int, TS]
    """job_id -> where its watermark moves in memory: nothing changed up to there."""
    failures: Mapping[int, IscpError]
    """job_id -> the permanent error that its table is in."""
    orphans: tuple[int, ...]
    """Jobs that the log calls pending or running while no run of theirs is alive."""
    checked: Mapping[TableKey, TS]
    """Unchanged tables -> their newest version, with the time of this check."""
    counts: Mapping[Headline, int]
    """How many tables came out how; adds up to all of them."""
    due_at: datetime | None
    """When the first job that is not due yet will be."""
    _jobs: Mapping[TableKey, Sequence[Job]] = field(compare=False, repr=False)
    _reasons: Mapping[int, str] = field(compare=False, repr=False)

    def reason(self, job: JobKey | int) -> str:
        """Return what happens to a job and why, by key or by generation.

        A key names the generation that answers queries, while another is being built.
        """
        if isinstance(job, int):
            if job in self._reasons:
                return self._reasons[job]
            found = [row for group in self._jobs.values() for row in group if row.job_id == job]
        else:
            found = [row for row in self._jobs.get(job.table_key, ()) if row.key == job]
        if not found:
            raise UnknownJob(f"{job} is not in this plan")
        return self._reason_of(max(found, key=_most_alive))

    def reasons(self) -> Iterator[tuple[Job, str]]:
        """Return every job with its reason, ordered by key."""
        for table in sorted(self._jobs):
            for job in sorted(self._jobs[table], key=lambda job: (job.key, job.job_id)):
                yield job, self._reason_of(job)

    @property
    def notable(self) -> Mapping[int, str]:
        """The reasons by job_id of those with more to tell than that nothing changed."""
        return self._reasons

    def summary(self) -> str:
        """Return the tick in one sentence: `6 tables: 4 unchanged, 1 due in 42 s, 1 in flight`."""
        total = sum(self.counts.values())
        if not total:
            return "no tables"
        parts = [
            f"{count} {self._words(headline, count)}"
            for headline in _SENTENCE_ORDER
            if (count := self.counts.get(headline, 0))
        ]
        return f"{total} {'table' if total == 1 else 'tables'}: {', '.join(parts)}"

    def __str__(self) -> str:
        return self.summary()

    def _words(self, headline: Headline, count: int) -> str:
        if headline is not Headline.DUE or self.due_at is None:
            return str(headline)
        wait = in_seconds(self.due_at, self.now)
        return f"due in {wait}" if count == 1 else f"due, the first in {wait}"

    def _reason_of(self, job: Job) -> str:
        reason = self._reasons.get(job.job_id)
        if reason is not None:
            return reason
        interval = job.spec.trigger.interval
        if interval is None:
            return f"unchanged at v{job.watermark.version}"
        checked = self.moves.get(job.job_id, job.watermark)
        wait = in_seconds(checked.time + interval, self.now)
        return f"unchanged at v{job.watermark.version}; due in {wait}"


def plan(
    jobs: Iterable[Job] | Mapping[TableKey, Sequence[Job]],
    tables: Mapping[TableKey, Probed],
    in_flight: Sequence[InFlight],
    now: datetime,
    *,
    free_slots: int | None = None,
    triggers: Mapping[str, Trigger] | None = None,
) -> Plan:
    """Decide what one tick starts.

    Args:
        jobs: The jobs of the log with their watermarks as moved in memory; grouped by table saves
            the grouping. Groups must not be changed while the plan is in use.
        tables: What the probe found, for each table it asked.
        in_flight: The iterations that are queued or running.
        now: The time of this tick.
        free_slots: How many iterations may start; None for all.
        triggers: Custom triggers by kind; a built-in kind can't be replaced.
    """
    groups = _grouped(jobs)
    flights: dict[TableKey, list[InFlight]] = {}
    for flight in sorted(in_flight, key=lambda flight: flight.run_id):
        flights.setdefault(flight.table, []).append(flight)
    known = {**(triggers or {}), **BUILT_IN}
    drafts: dict[TableKey, TableDraft] = {}
    checked: dict[TableKey, TS] = {}
    moves: dict[int, TS] = {}
    for key, group in groups.items():
        probed = tables.get(key)
        if key not in flights and isinstance(probed, History):
            on_time = _on_time_if_quiet(group, probed, now)
            if on_time is not None:
                checked[key] = head = TS(probed.head.version, now)
                for job in on_time:
                    moves[job.job_id] = head
                continue
        draft = plan_table(key, group, probed, flights.get(key, ()), now, known)
        drafts[key] = draft
        if draft.headline is Headline.UNCHANGED and isinstance(probed, History):
            checked[key] = TS(probed.head.version, now)
    return _assemble(groups, drafts, checked, moves, now, free_slots)


def _grouped(
    jobs: Iterable[Job] | Mapping[TableKey, Sequence[Job]],
) -> dict[TableKey, Sequence[Job]]:
    if isinstance(jobs, Mapping):
        by_table = cast("Mapping[TableKey, Sequence[Job]]", jobs)
        return {key: group for key, group in by_table.items() if group}
    groups: dict[TableKey, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.key.table_key, []).append(job)
    return {**groups}


def _on_time_if_quiet(
    group: Sequence[Job], history: History, now: datetime
) -> Sequence[Job] | None:
    """Return the periodic jobs whose interval has passed, if there is nothing else to tell.

    A table is quiet when every job stands at the newest version and could start. This is the common
    case by far, so it costs a few comparisons per job and, most of the time, no allocation.
    """
    version, completed = history.head.version, JobState.COMPLETED
    on_time: Sequence[Job] = ()
    for job in group:
        watermark = job.watermark
        if (
            watermark.version != version
            or job.state is not completed
            or job.drop_at is not None
            or job.paused_at is not None
            or job.next_attempt_at is not None
            or version < 0
        ):
            return None
        trigger = job.spec.trigger
        if trigger.interval is not None and now - watermark.time >= trigger.interval:
            if trigger.kind != "periodic":
                return None
            on_time = (*on_time, job)
    return on_time


def _assemble(
    groups: Mapping[TableKey, Sequence[Job]],
    drafts: Mapping[TableKey, TableDraft],
    checked: Mapping[TableKey, TS],
    moves: dict[int, TS],
    now: datetime,
    free_slots: int | None,
) -> Plan:
    ordered = sorted(
        (iteration for draft in drafts.values() for iteration in draft.iterations),
        key=lambda iteration: iteration.start_order,
    )
    slots = len(ordered) if free_slots is None else max(free_slots, 0)
    started = tuple(ordered[:slots])
    waiting = tuple(
        replace(iteration, reason=f"{iteration.reason}; waits for a free slot, {place} before it")
        for place, iteration in enumerate(ordered[slots:])
    )
    reasons: dict[int, str] = {}
    failures: dict[int, IscpError] = {}
    orphans: list[int] = []
    for draft in drafts.values():
        reasons.update(draft.reasons)
        moves.update(draft.moves)
        failures.update(draft.failures)
        orphans += draft.orphans
    headlines = {key: draft.headline for key, draft in drafts.items()}
    for headline, iterations in ((Headline.NO_SLOT, waiting), (Headline.STARTING, started)):
        for iteration in iterations:
            headlines[iteration.table] = headline
            sentence = f"{headline}: {iteration.kind} {iteration.window}; {iteration.reason}"
            reasons.update(dict.fromkeys(iteration.job_ids, sentence))
    counts = Counter(headlines.values())
    if quiet := len(groups) - len(drafts):
        counts[Headline.UNCHANGED] += quiet
    return Plan(
        now=now,
        iterations=started,
        waiting=waiting,
        moves=moves,
        failures=failures,
        orphans=tuple(sorted(orphans)),
        checked=checked,
        counts=counts,
        due_at=min((draft.due_at for draft in drafts.values() if draft.due_at), default=None),
        _jobs=groups,
        _reasons=reasons,
    )


def _most_alive(job: Job) -> tuple[bool, bool, int]:
    return (job.drop_at is None, job.job_id == job.live_job_id, job.job_id)

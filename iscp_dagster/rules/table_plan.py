"""One table in one tick: candidates -> changed only -> shared windows.

A *move* takes a watermark over versions that changed nothing, in memory only. A *rebuild* reads a
snapshot because the change feed after the watermark is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from iscp_dagster.errors import IscpError, SourceTableMissing, SourceTableReplaced
from iscp_dagster.rules.candidates import Bar, Headline, bar, is_aboard, is_healthy
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import (
    TS,
    History,
    InFlight,
    IterationKind,
    Job,
    Probed,
    ProbeFailed,
    TableKey,
    TableMissing,
    TableReplaced,
    Window,
)
from iscp_dagster.rules.triggers import (
    Due,
    TableView,
    Trigger,
    Waiting,
    convoy_of,
    meets_others,
    shares,
    window_end,
)
from iscp_dagster.rules.windows import Changes


@dataclass(slots=True)
class TableDraft:
    """What one table adds to the plan."""

    headline: Headline = Headline.DROPPED
    due_at: datetime | None = None
    iterations: list[Iteration] = field(default_factory=list)
    moves: dict[int, TS] = field(default_factory=dict)
    failures: dict[int, IscpError] = field(default_factory=dict)
    orphans: list[int] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)

    def say(self, job: Job, headline: Headline, reason: str) -> None:
        """Note what happens to a job, and why."""
        self.reasons[job.job_id] = reason
        if _RANK[headline] < _RANK[self.headline]:
            self.headline = headline


_RANK = {headline: rank for rank, headline in enumerate(Headline)}


def plan_table(
    key: TableKey,
    jobs: Iterable[Job],
    probed: Probed | None,
    flights: Sequence[InFlight],
    now: datetime,
    triggers: Mapping[str, Trigger],
) -> TableDraft:
    """Decide for the jobs of one table."""
    draft = TableDraft()
    jobs = sorted(jobs, key=lambda job: (job.key, job.job_id))
    barred = {job.job_id: bar(job, flights, now) for job in jobs}
    for job in jobs:
        _note_bar(draft, job, barred[job.job_id])
    candidates = [job for job in jobs if barred[job.job_id] is None]
    match probed:
        case History():
            changes = Changes(probed)
            flying = [
                (flight, [job for job in jobs if is_aboard(job, flight) and is_healthy(job)])
                for flight in flights
            ]
            view = TableView(changes, convoy_of(candidates, flying, changes), now)
            _follow(draft, key, candidates, view, triggers)
        case TableMissing() | TableReplaced():
            waiting = (Headline.BACKING_OFF, Headline.CANCELED)
            for job in jobs:
                found = barred[job.job_id]
                if found is None or found.headline in waiting:
                    _fail(draft, job, probed)
        case ProbeFailed():
            for job in candidates:
                reason = f"probe failed: {probed.reason}; asked again at the next tick"
                draft.say(job, Headline.UNREADABLE, reason)
        case None:
            for job in candidates:
                draft.say(job, Headline.NOT_PROBED, "its table was not probed in this tick")
    return draft


def _note_bar(draft: TableDraft, job: Job, found: Bar | None) -> None:
    if found is None:
        return
    draft.say(job, found.headline, found.reason)
    if found.headline is Headline.ORPHANED:
        draft.orphans.append(job.job_id)


def _fail(draft: TableDraft, job: Job, probed: TableMissing | TableReplaced) -> None:
    table = job.key.table_key
    if isinstance(probed, TableMissing):
        error = SourceTableMissing(f"table {table} is gone: {probed.reason}")
        draft.say(job, Headline.MISSING, str(error))
    else:
        error = SourceTableReplaced(f"table {table} was replaced by Delta table {probed.delta_id}")
        draft.say(job, Headline.REPLACED, str(error))
    draft.failures[job.job_id] = error


def _follow(
    draft: TableDraft,
    key: TableKey,
    candidates: Sequence[Job],
    view: TableView,
    triggers: Mapping[str, Trigger],
) -> None:
    groups: dict[tuple[object, ...], list[tuple[Job, Due]]] = {}
    for job in candidates:
        decision = _ask(job, view, triggers)
        if isinstance(decision, Waiting):
            _wait(draft, job, decision)
            continue
        kind = _kind(job, decision, view.changes)
        if kind is not IterationKind.SNAPSHOT and not _has_changed(job, decision.to, view):
            _move(draft, job, decision.to, view)
            continue
        if decision.share:
            ways: tuple[object, ...] = (kind, job.watermark.version, decision.to.version)
        else:
            ways = (kind, job.job_id)
        # Two generations of one name, the live one and one being built, can't share a run.
        generation = 0
        while any(job.key == other.key for other, _ in groups.get((*ways, generation), ())):
            generation += 1
        groups.setdefault((*ways, generation), []).append((job, decision))
    for (kind, *_), members in groups.items():
        assert isinstance(kind, IterationKind)
        _start(draft, key, kind, members, candidates, view)


def _ask(job: Job, view: TableView, triggers: Mapping[str, Trigger]) -> Due | Waiting:
    kind = job.spec.trigger.kind
    trigger = triggers.get(kind)
    if trigger is None:
        return Waiting(f"trigger {kind!r} is not installed; `iscp alter --trigger` takes another")
    if job.is_new:
        decision = _first_sync(job, view)
    else:
        try:
            decision = trigger(job, view)
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything; others go on
            return Waiting(f"trigger {kind!r} failed: {type(error).__name__}: {error}")
    if not isinstance(decision, Due | Waiting):
        return Waiting(f"trigger {kind!r} returned {type(decision).__name__}, not Due or Waiting")
    if isinstance(decision, Due) and view.head < decision.to:
        return Waiting(f"the probe has seen up to v{view.head.version}; asked again next tick")
    return decision


def _first_sync(job: Job, view: TableView) -> Due | Waiting:
    if view.head.is_zero:
        return Waiting("the table has no commit yet")
    if view.convoy is not None and meets_others(job):
        to = view.meeting_point
        return Due(to, f"new: first sync up to v{to.version}, to meet the others")
    return Due(view.head, f"new: first sync up to v{view.head.version}")


def _kind(job: Job, due: Due, changes: Changes) -> IterationKind:
    if job.is_new or changes.lost(job.watermark):
        return IterationKind.SNAPSHOT
    return IterationKind.CATCH_UP if due.catch_up else IterationKind.TAIL


def _has_changed(job: Job, to: TS, view: TableView) -> bool:
    return view.changes.first_change(job.watermark, to) is not None


def _wait(draft: TableDraft, job: Job, waiting: Waiting) -> None:
    if waiting.until is None:
        draft.say(job, Headline.WAITING, waiting.reason)
        return
    draft.say(job, Headline.DUE, waiting.reason)
    draft.due_at = min(draft.due_at or waiting.until, waiting.until)


def _move(draft: TableDraft, job: Job, to: TS, view: TableView) -> None:
    """Move a watermark over what changed nothing; at the same version only where time counts."""
    settled = view.changes.settled(job.watermark, to)
    on_time = job.spec.trigger.interval is not None and settled == job.watermark.version
    if settled > job.watermark.version or on_time:
        draft.moves[job.job_id] = TS(settled, view.now)
    if view.head.version <= settled:
        draft.say(job, Headline.UNCHANGED, f"unchanged at v{settled}")
    else:
        draft.say(job, Headline.WAITING, f"nothing changed up to v{settled}; goes on next tick")


def _start(
    draft: TableDraft,
    key: TableKey,
    kind: IterationKind,
    members: Sequence[tuple[Job, Due]],
    candidates: Sequence[Job],
    view: TableView,
) -> None:
    jobs, due = [job for job, _ in members], members[0][1]
    start = max((job.watermark for job in jobs), key=lambda ts: ts.time)
    reason, end = due.reason, view.changes.point(due.to)
    if kind is not IterationKind.SNAPSHOT:
        end = window_end(jobs, due.to, view.changes)
        if view.changes.first_change(start, end) is None:
            for job in jobs:
                _move(draft, job, due.to, view)
            return
    elif not start.is_zero:
        first = view.changes.history.first_version
        end = end if first <= end.version else view.head
        reason = f"history before v{first} is gone: rebuilt from a snapshot"
    draft.iterations.append(
        Iteration(
            table=key,
            window=Window(start, end),
            job_names=tuple(job.key.name for job in jobs),
            job_ids=tuple(job.job_id for job in jobs),
            lsns=tuple(job.lsn for job in jobs),
            kind=kind,
            attempt=max(job.attempt for job in jobs),
            priority=_priority(kind, jobs, candidates, view),
            trigger=",".join(sorted({job.spec.trigger.kind for job in jobs})),
            waiting_since=(
                min(job.create_at for job in jobs)
                if start.is_zero
                else view.changes.waiting_since(start)
            ),
            reason=reason,
        )
    )


def _priority(
    kind: IterationKind, jobs: Sequence[Job], candidates: Sequence[Job], view: TableView
) -> int:
    """The highest among the jobs, and among those that wait for them: nobody waits below rank."""
    convoy = view.convoy
    ranks = [job.spec.priority for job in jobs]
    if kind is IterationKind.CATCH_UP and convoy is not None and convoy.held_by:
        ranks += [
            job.spec.priority
            for job in candidates
            if shares(job)
            and job.watermark == convoy.watermark
            and _has_changed(job, view.head, view)
        ]
    return max(ranks)

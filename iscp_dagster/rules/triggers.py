"""Who is due, and up to where.

A *sharing* job has the default trigger and is not independent. The *convoy* of a table are its
sharing jobs at the highest watermark among the healthy ones; they travel in one iteration. A
*laggard* is a sharing job behind the convoy; it comes back by *catch-ups*, whose *hops* are capped
like any window; the *last hop* ends at the convoy's watermark. Nothing here reads a clock, a
database or a table.

A trigger is asked about one job that could start now and has had its first sync. The planner then
drops what has not changed, shares windows and caps them: a trigger only says who and up to where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from types import MappingProxyType

from iscp_dagster.rules.model import TS, InFlight, IterationKind, Job
from iscp_dagster.rules.windows import Changes


@dataclass(frozen=True, slots=True)
class Due:
    """The job wants an iteration from its watermark up to `to`."""

    to: TS
    reason: str
    share: bool = False
    """Travel with others that go from the same version to the same point in this tick."""
    catch_up: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """The job does not want an iteration in this tick; `reason` is what the tick shows."""

    reason: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Convoy:
    """Where the sharing jobs of a table stand, and what is under way among them."""

    watermark: TS
    in_flight: tuple[str, ...] = ()
    """The jobs of the convoy's own iteration that is in flight."""
    catching_up: tuple[str, ...] = ()
    """The jobs of the catch-up that is in flight."""
    next_laggards: int | None = None
    """The version of the laggards whose turn it is."""
    held_by: tuple[str, ...] = ()
    """The jobs whose last hop, planned or in flight, the convoy waits for."""


@dataclass(frozen=True, slots=True)
class TableView:
    """What a trigger may know about a job's table."""

    changes: Changes
    convoy: Convoy | None
    now: datetime

    @property
    def head(self) -> TS:
        """The newest version at the probe; what the rules call *now*."""
        return self.changes.history.head

    @property
    def meeting_point(self) -> TS:
        """Where an index built from a snapshot meets the sharing jobs, else the newest version."""
        convoy = self.convoy
        if convoy is None or convoy.watermark.version < self.changes.history.first_version:
            return self.head
        return self.changes.point(convoy.watermark)


Trigger = Callable[[Job, TableView], Due | Waiting]


def default(job: Job, table: TableView) -> Due | Waiting:
    """Travel with the convoy; when behind it, catch up."""
    if not shares(job):
        return Due(table.head, "changed; goes on its own")
    convoy = table.convoy or Convoy(job.watermark)
    if job.watermark < convoy.watermark:
        return _laggard(job, table, convoy)
    if convoy.in_flight:
        return Waiting(f"waits for the iteration of {_names(convoy.in_flight)}")
    if convoy.held_by:
        return Waiting(f"waits for {_names(convoy.held_by)} to catch up")
    return Due(table.head, "changed", share=True)


def greedy(job: Job, table: TableView) -> Due | Waiting:
    """Every tick, an iteration of its own."""
    return Due(table.head, "changed; greedy")


def periodic(job: Job, table: TableView) -> Due | Waiting:
    """Only when the interval has passed since the commit or check time in the watermark."""
    spec = job.spec.trigger
    if spec.interval is None:
        return Waiting("periodic without an interval; `iscp alter` sets one")
    due_at = job.watermark.time + spec.interval
    if table.now < due_at:
        return Waiting(f"due in {in_seconds(due_at, table.now)}", until=due_at)
    return Due(table.head, "changed; interval passed", share=spec.share and not spec.independent)


BUILT_IN: Mapping[str, Trigger] = MappingProxyType(
    {"default": default, "greedy": greedy, "periodic": periodic}
)


def shares(job: Job) -> bool:
    """Whether the job belongs to its table's convoy, at its head or behind."""
    trigger = job.spec.trigger
    return trigger.kind == "default" and not trigger.independent


def meets_others(job: Job) -> bool:
    """Whether a first sync should end where the sharing jobs stand, to go on together."""
    trigger = job.spec.trigger
    joins = trigger.kind == "periodic" and trigger.share and not trigger.independent
    return joins or shares(job)


def convoy_of(
    candidates: Sequence[Job], flying: Sequence[tuple[InFlight, Sequence[Job]]], changes: Changes
) -> Convoy | None:
    """Return the convoy of a table, or None when no healthy sharing job has had its first sync.

    Args:
        candidates: The jobs of the table that could start now.
        flying: What is in flight on the table, each with those of its jobs that are healthy.
        changes: The table's history.
    """
    waiting = [job for job in candidates if shares(job) and not job.is_new]
    shared = [(flight, [job for job in jobs if shares(job)]) for flight, jobs in flying]
    shared = [(flight, jobs) for flight, jobs in shared if jobs]
    airborne = [job for _, jobs in shared for job in jobs if not job.is_new]
    if not waiting and not airborne:
        return None
    watermark = max(
        (job.watermark for job in (*waiting, *airborne)), key=lambda ts: (ts.version, ts.time)
    )
    catch_ups = [flight for flight, _ in shared if flight.kind is IterationKind.CATCH_UP]
    tails = [
        flight for flight, _ in shared if flight.kind in (IterationKind.TAIL, IterationKind.NO_OP)
    ]
    turn: Sequence[Job] = () if catch_ups else _next_laggards(waiting, watermark, changes)
    held_by = [
        name
        for flight in catch_ups
        if flight.attempt == 0 and flight.window.end == watermark
        for name in flight.job_names
    ]
    if turn and is_last_hop(turn, watermark, changes):
        held_by = [job.key.name for job in turn]
    return Convoy(
        watermark=watermark,
        in_flight=tuple(name for flight in tails for name in flight.job_names),
        catching_up=tuple(name for flight in catch_ups for name in flight.job_names),
        next_laggards=turn[0].watermark.version if turn else None,
        held_by=tuple(held_by),
    )


def is_last_hop(laggards: Sequence[Job], watermark: TS, changes: Changes) -> bool:
    """Whether the next hop ends at the convoy, at the first attempt: worth waiting for."""
    return (
        max(job.attempt for job in laggards) == 0
        and window_end(laggards, watermark, changes) == watermark
    )


def window_end(jobs: Sequence[Job], to: TS, changes: Changes) -> TS:
    """Return where the jobs' shared window towards `to` ends: the smallest cap counts."""
    return changes.cap(
        jobs[0].watermark,
        to,
        min(job.spec.max_window_versions for job in jobs),
        min(job.spec.max_window_bytes for job in jobs),
    )


def in_seconds(until: datetime, now: datetime) -> str:
    """Write how long it is until then, as the tick shows it."""
    return f"{max(1, ceil((until - now).total_seconds()))} s"


def _laggard(job: Job, table: TableView, convoy: Convoy) -> Due | Waiting:
    if table.changes.lost(job.watermark):
        return Due(table.meeting_point, "behind the others", share=True)
    place = f"behind the others at v{convoy.watermark.version}"
    to = table.changes.point(convoy.watermark)
    if table.changes.first_change(job.watermark, to) is not None:
        if convoy.catching_up:
            return Waiting(f"{place}; waits for the catch-up of {_names(convoy.catching_up)}")
        if job.watermark.version != convoy.next_laggards:
            return Waiting(f"{place}; those further behind go first")
    return Due(to, f"{place}; catches up", share=True, catch_up=True)


def _next_laggards(jobs: Sequence[Job], watermark: TS, changes: Changes) -> Sequence[Job]:
    behind = [
        job
        for job in jobs
        if job.watermark < watermark
        and not changes.lost(job.watermark)
        and changes.first_change(job.watermark, watermark) is not None
    ]
    furthest = min((job.watermark.version for job in behind), default=None)
    return [job for job in behind if job.watermark.version == furthest]


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)

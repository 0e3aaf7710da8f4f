"""Which jobs could start now.

A *candidate* is a job that could start now. A *bar* is why a job can't: it is in flight, dropped,
paused, in error, canceled or backing off. Who is barred holds nobody up. An *orphan* is a job whose
log row says pending or running while no run of it is alive: its run ended without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from iscp_dagster.rules.model import InFlight, Job, JobState
from iscp_dagster.rules.triggers import in_seconds


class Headline(StrEnum):
    """What the tick's sentence counts a table under: the first that holds for one of its jobs."""

    STARTING = "starting"
    NO_SLOT = "waiting for a slot"
    MISSING = "missing"
    REPLACED = "replaced"
    UNREADABLE = "unreadable"
    NOT_PROBED = "not probed"
    IN_FLIGHT = "in flight"
    ORPHANED = "without its run"
    WAITING = "waiting"
    DUE = "due"
    BACKING_OFF = "backing off"
    CANCELED = "canceled"
    UNCHANGED = "unchanged"
    IN_ERROR = "in error"
    PAUSED = "paused"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Bar:
    """Why a job can't start now."""

    headline: Headline
    reason: str


def bar(job: Job, flights: Sequence[InFlight], now: datetime) -> Bar | None:
    """Return why a job can't start now, or None if it is a candidate."""
    if job.drop_at is not None:
        return Bar(Headline.DROPPED, "dropped")
    for flight in flights:
        if is_aboard(job, flight):
            doing = "running" if flight.started else "queued"
            return Bar(Headline.IN_FLIGHT, f"in flight: {flight.kind} {flight.window} is {doing}")
    if job.paused_at is not None:
        return Bar(Headline.PAUSED, "paused; `iscp resume` lets it go on")
    problem = f"{job.status.error_code}: {job.status.error_msg}"
    if job.state is JobState.ERROR:
        return Bar(Headline.IN_ERROR, f"in error {problem}; `iscp repair` lets it go on")
    if job.state in (JobState.PENDING, JobState.RUNNING):
        return Bar(Headline.ORPHANED, f"the log says {job.state}, but no run of it is alive")
    if job.next_attempt_at is not None and now < job.next_attempt_at:
        wait = in_seconds(job.next_attempt_at, now)
        if job.state is JobState.CANCELED:
            return Bar(Headline.CANCELED, f"canceled; may start again in {wait}")
        failed = f"attempt {job.attempt} failed with {problem}"
        return Bar(Headline.BACKING_OFF, f"{failed}; tries again in {wait}")
    return None


def is_aboard(job: Job, flight: InFlight) -> bool:
    """Whether this generation of the job is in the iteration."""
    if flight.job_ids:
        return job.job_id in flight.job_ids
    return job.key.name in flight.job_names


def is_healthy(job: Job) -> bool:
    """Whether a job in flight counts among its table's convoy."""
    return job.drop_at is None and job.paused_at is None and job.state is not JobState.ERROR

"""Keeping the log true to what Dagster says: pending, running, ended, lost.

A run records its own outcome. This is for what it could not: a run that is still queued, was
canceled before it started, or died without a word. Each write is a compare-and-set, so a run that
speaks up meanwhile wins.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from dagster import DagsterInstance, DagsterRunStatus

from iscp_dagster.errors import IscpError
from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.runs import IN_FLIGHT, Flight
from iscp_dagster.rules.model import Job, JobState
from iscp_dagster.rules.outcome import Outcome, canceled, lost, stop

SILENT_SECONDS = 15.0
"""A run that has not beaten for this long is dead; it beats every 2 s."""
UNCLAIMED_SECONDS = 90.0
"""A started run claims its jobs before it does anything else; one that has not by then is dead."""


def mirror_queued(log: JobLog, jobs: Iterable[Job], flights: Sequence[Flight]) -> None:
    """Say pending for the jobs of runs that are queued."""
    queued = {
        (flight.in_flight.table, name): flight.in_flight.run_id
        for flight in flights
        if not flight.in_flight.started
        for name in flight.in_flight.job_names
    }
    waiting = (JobState.COMPLETED, JobState.CANCELED)
    writes = [
        (job, {"state": JobState.PENDING, "status": replace(job.status, run_id=run_id)})
        for job in jobs
        if job.state in waiting and (run_id := queued.get((job.key.table_key, job.key.name)))
    ]
    if writes:
        log.jobs.compare_and_set_many(writes)


def settle_orphans(
    log: JobLog, instance: DagsterInstance, jobs: Iterable[Job], now: datetime
) -> list[str]:
    """Free jobs that the log calls pending or running while no run holds them; says which."""
    writes: list[tuple[Job, Mapping[str, Any]]] = []
    told: list[str] = []
    for job in jobs:
        run = instance.get_run_by_id(job.status.run_id) if job.status.run_id else None
        if run is not None and run.status in IN_FLIGHT:
            continue
        if run is not None and run.status is DagsterRunStatus.CANCELED:
            writes.append((job, _columns(job, canceled(job, now), now)))
        elif job.state is JobState.PENDING and (run is None or run.is_success):
            # Nothing was tried: no attempt is counted.
            writes.append((job, {"state": JobState.COMPLETED}))
        else:
            writes.append((job, _columns(job, lost(job, now), now)))
        told.append(f"{job.key}: its run {job.status.run_id or '(none)'} is gone")
    if writes:
        log.jobs.compare_and_set_many(writes)
    return told


def stop_failed(
    log: JobLog, jobs: Mapping[int, Job], failures: Mapping[int, IscpError], now: datetime
) -> None:
    """Write the permanent errors that a plan found: the table is gone or another one."""
    writes = [
        (jobs[job_id], _columns(jobs[job_id], stop(jobs[job_id], error), now))
        for job_id, error in failures.items()
    ]
    if writes:
        log.jobs.compare_and_set_many(writes)


class LostRuns:
    """Finds runs that stopped beating, by this process's own clock: machines' clocks differ."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[object, float]] = {}

    def report(
        self, log: JobLog, instance: DagsterInstance, flights: Sequence[Flight], now: datetime
    ) -> list[str]:
        """Report silent runs as failed and close their iterations; returns their ids."""
        beats = {record.run_id: record for record in log.iterations.open()}
        started = [flight for flight in flights if flight.status is DagsterRunStatus.STARTED]
        silent = [
            flight.in_flight.run_id
            for flight in started
            if self._is_silent(flight.in_flight.run_id, beats.get(flight.in_flight.run_id))
        ]
        alive = {flight.in_flight.run_id for flight in started}
        self._seen = {run_id: seen for run_id, seen in self._seen.items() if run_id in alive}
        for run_id in silent:
            run = instance.get_run_by_id(run_id)
            if run is None or run.is_finished:
                continue
            instance.report_run_failed(run, "iscp: the run stopped beating; it is taken for dead")
            if run_id in beats:
                log.iterations.finish(beats[run_id].id, now=now, error="the run died")
        return silent

    def _is_silent(self, run_id: str, beat: Any) -> bool:
        value = None if beat is None else beat.heartbeat_at
        before = self._seen.get(run_id)
        clock = time.monotonic()
        if before is None or before[0] != value:
            self._seen[run_id] = (value, clock)
            return False
        return clock - before[1] >= (UNCLAIMED_SECONDS if beat is None else SILENT_SECONDS)


def _columns(job: Job, outcome: Outcome, now: datetime) -> dict[str, Any]:
    return {
        "state": outcome.state,
        "attempt": outcome.attempt,
        "next_attempt_at": outcome.next_attempt_at,
        "status": replace(
            job.status,
            end_at=now,
            error_code=outcome.error_code,
            error_msg=outcome.error_msg,
        ),
    }

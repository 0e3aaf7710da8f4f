"""Keeping the log true to what Dagster says: pending, running, ended, lost.

A run records its own outcome. This is for what it could not: a run that is still queued, was
canceled before it started, or died without a word. Each write is a compare-and-set, so a run that
speaks up meanwhile wins.

A run *beats* while it lives: it writes the time to its iteration in the log. One that is *silent*
is dead. A run *spends* its key: Dagster starts no other with the same one, however it ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.storage.tags import RUN_KEY_TAG

from iscp_dagster.errors import IscpError, RunLost
from iscp_dagster.joblog import JobLog
from iscp_dagster.joblog.iterations import IterationRecord
from iscp_dagster.orchestration.runs import IN_FLIGHT, Flight
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import Job, JobState, TableKey
from iscp_dagster.rules.outcome import Outcome, canceled, hold, lost, stop

SILENT_SECONDS = 15.0
"""A run that has not beaten for this long is dead; it beats every 2 s."""
UNCLAIMED_SECONDS = 90.0
"""A run claims its jobs before it does anything else; one that has not by then is dead."""
ENDING_SECONDS = 30.0
"""After its iteration a run only tells Dagster; one that has not ended by then is dead."""
_LAST_ITERATIONS = 20
_OLD_BEAT = timedelta(minutes=1)
_LOOK_SECONDS = 10.0
"""The most that one look counts: while nobody looked, the log may have been away for the run."""


def mirror_queued(log: JobLog, jobs: Iterable[Job], flights: Sequence[Flight]) -> None:
    """Say pending for the jobs of runs that are queued."""
    queued = {
        (flight.in_flight.table, name): flight.in_flight.run_id
        for flight in flights
        if not flight.in_flight.started
        for name in flight.in_flight.job_names
    }
    if not queued:
        return
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
    return _write(log, writes)


def settle_spent(
    log: JobLog,
    instance: DagsterInstance,
    iterations: Sequence[Iteration],
    jobs: Mapping[int, Job],
    now: datetime,
) -> tuple[list[Iteration], list[str]]:
    """Return the iterations that can have a run, and what was written about the others.

    A run that ended before it claimed its jobs has spent the key under which they would be planned
    again. Its end is written to the jobs, and the next plan has a key of its own.
    """
    ready: list[Iteration] = []
    told: list[str] = []
    for iteration in iterations:
        spent = instance.get_runs(RunsFilter(tags={RUN_KEY_TAG: iteration.run_key}), limit=1)
        if not spent:
            ready.append(iteration)
        elif spent[0].is_finished:
            told += settle_unclaimed(log, iteration, jobs, spent[0], now)
    return ready, told


def settle_unclaimed(
    log: JobLog, iteration: Iteration, jobs: Mapping[int, Job], run: DagsterRun, now: datetime
) -> list[str]:
    """Write the end of a run to those of its jobs that it never claimed; says which."""
    members = [
        replace(job, status=replace(job.status, run_id=run.run_id))
        for job_id in iteration.job_ids
        if (job := jobs.get(job_id))
    ]
    return _write(log, [(job, _ended_unclaimed(job, run, now)) for job in members])


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

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked = clock()
        self._beats: dict[str, datetime | None] = {}
        self._silence: dict[str, float] = {}

    def report(
        self, log: JobLog, instance: DagsterInstance, flights: Sequence[Flight], now: datetime
    ) -> list[str]:
        """Report silent runs as ended and close the iterations of dead ones; returns the silent.

        A run without our tags is found by its iteration. A queued one has nothing to say yet.
        """
        tables = {flight.in_flight.run_id: flight.in_flight.table for flight in flights}
        queued = {f.in_flight.run_id for f in flights if f.status is DagsterRunStatus.QUEUED}
        beats = {record.run_id: record for record in log.iterations.open()}
        self._listen((tables.keys() | beats.keys()) - queued, beats, now)
        silent = []
        for run_id in self._beats:
            is_silent = self._is_silent(log, run_id, tables.get(run_id))
            if run_id in tables and not is_silent:
                continue
            run = instance.get_run_by_id(run_id)
            if run is not None and not run.is_finished:
                if not is_silent:
                    continue
                _report_dead(instance, run)
                silent.append(run_id)
            if run_id in beats:
                log.iterations.finish(beats[run_id].id, now=now, error="the run died")
        return silent

    def _listen(
        self, run_ids: Iterable[str], beats: Mapping[str, IterationRecord], now: datetime
    ) -> None:
        clock = self._clock()
        passed = min(clock - self._looked, _LOOK_SECONDS)
        self._looked = clock
        silence: dict[str, float] = {}
        heard: dict[str, datetime | None] = {}
        for run_id in run_ids:
            beat = beats[run_id].heartbeat_at if run_id in beats else None
            heard[run_id] = beat
            if run_id not in self._beats:
                # New here: a beat that is old by any clock counts as one look.
                old = beat is not None and now - beat > _OLD_BEAT
                silence[run_id] = _LOOK_SECONDS if old else 0.0
            else:
                same = self._beats[run_id] == beat
                silence[run_id] = self._silence[run_id] + passed if same else 0.0
        self._silence, self._beats = silence, heard

    def _is_silent(self, log: JobLog, run_id: str, table: TableKey | None) -> bool:
        silence = self._silence[run_id]
        if self._beats[run_id] is not None:
            return silence >= SILENT_SECONDS
        if not ENDING_SECONDS <= silence < UNCLAIMED_SECONDS:
            return silence >= UNCLAIMED_SECONDS
        ended = log.iterations.list(table=table, limit=_LAST_ITERATIONS)
        return any(record.run_id == run_id for record in ended)


def _report_dead(instance: DagsterInstance, run: DagsterRun) -> None:
    if run.status is DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run)
    else:
        instance.report_run_failed(run, "iscp: the run stopped beating; it is taken for dead")


def _write(log: JobLog, writes: Sequence[tuple[Job, Mapping[str, Any]]]) -> list[str]:
    """Write what the ends of runs mean for their jobs; says for which it was still true."""
    if not writes:
        return []
    written = log.jobs.compare_and_set_many(writes)
    return [
        f"{job.key}: its run {job.status.run_id or '(none)'} is gone"
        for (job, _), done in zip(writes, written, strict=True)
        if done is not None
    ]


def _ended_unclaimed(job: Job, run: DagsterRun, now: datetime) -> dict[str, Any]:
    if run.status is DagsterRunStatus.CANCELED:
        return _columns(job, canceled(job, now), now)
    if run.is_success:
        # It had nothing to do with this job: the token moves on, and with it the key.
        return {"state": job.state}
    error = RunLost(f"run {run.run_id} ended before it claimed the job")
    return _columns(job, hold(job, error, now), now)


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

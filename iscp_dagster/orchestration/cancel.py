"""Canceling what is queued or runs for a job that was dropped or interrupted.

A run that is for this job alone is ended through Dagster. One that it shares with others goes on:
the run itself notices that the job is no longer its own, and stops that consumer only.
"""

from __future__ import annotations

from dagster import DagsterInstance, DagsterRunStatus

from iscp_dagster.orchestration.runs import flights
from iscp_dagster.rules.model import JobKey


def cancel_runs_of(instance: DagsterInstance, job: JobKey) -> list[str]:
    """Ask Dagster to end the runs that are for this job alone; returns their ids."""
    canceled = []
    for flight in flights(instance):
        mine = flight.in_flight.table == job.table_key and flight.in_flight.job_names == (job.name,)
        if mine and flight.status is not DagsterRunStatus.CANCELING:
            instance.run_coordinator.cancel_run(flight.in_flight.run_id)
            canceled.append(flight.in_flight.run_id)
    return canceled

"""Sensors on the end of runs: a run that could not record its own outcome gets it recorded here.

A run that was canceled while queued, or failed before it claimed its jobs, never wrote to the log;
the jobs it was for would stay pending. One sensor each for success, failure and cancel.
"""

from __future__ import annotations

from datetime import UTC, datetime

from dagster import (
    DagsterRunStatus,
    DefaultSensorStatus,
    RunStatusSensorContext,
    SensorDefinition,
    SkipReason,
    run_status_sensor,
)

from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.runs import read_tags
from iscp_dagster.orchestration.settle import settle_orphans
from iscp_dagster.rules.model import Job, JobState
from iscp_dagster.settings import Settings

_ENDS = {
    "success": DagsterRunStatus.SUCCESS,
    "failure": DagsterRunStatus.FAILURE,
    "canceled": DagsterRunStatus.CANCELED,
}
_INTERVAL_SECONDS = 9


def outcome_sensors() -> list[SensorDefinition]:
    """Build one sensor for each way a run can end."""
    return [_outcome_sensor(name, status) for name, status in _ENDS.items()]


def _outcome_sensor(name: str, status: DagsterRunStatus) -> SensorDefinition:
    @run_status_sensor(
        run_status=status,
        name=f"iscp_on_{name}",
        description=f"Records the end of runs ({name}) that could not record it themselves.",
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
    )
    def on_end(context: RunStatusSensorContext) -> SkipReason:
        flight = read_tags(context.dagster_run)
        if flight is None:
            return SkipReason("not a run of iscp")
        with JobLog.open(Settings.from_env()) as log:
            unsettled = [
                job
                for job in log.jobs.list(table=flight.table)
                if isinstance(job, Job)
                and job.status.run_id == flight.run_id
                and job.state in (JobState.PENDING, JobState.RUNNING)
            ]
            told = settle_orphans(log, context.instance, unsettled, datetime.now(UTC))
        return SkipReason("; ".join(told) or f"run {flight.run_id} recorded its own outcome")

    return on_end

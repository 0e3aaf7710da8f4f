"""Housekeeping as Dagster jobs and hourly schedules."""

from datetime import UTC, datetime

from dagster import (
    DefaultScheduleStatus,
    JobDefinition,
    OpExecutionContext,
    ScheduleDefinition,
    job,
    op,
)

from iscp_dagster.maintenance.flush import flush_watermarks
from iscp_dagster.maintenance.gc import collect_garbage
from iscp_dagster.orchestration.resources import IscpResource
from iscp_dagster.orchestration.runs import flights


@op(description="Remove dropped indexes, old iterations and old windows.")
def gc(context: OpExecutionContext, iscp: IscpResource) -> None:
    """Collect garbage and tell what went."""
    context.log.info(
        str(collect_garbage(iscp.log, iscp.settings, datetime.now(UTC), context.instance))
    )


@op(description="Write the watermarks of indexes whose tables did not change to the log.")
def flush(context: OpExecutionContext, iscp: IscpResource) -> None:
    """Flush idle watermarks and tell how many moved."""
    in_flight = [flight.in_flight for flight in flights(context.instance)]
    moved = flush_watermarks(iscp.log, in_flight, datetime.now(UTC))
    context.log.info(f"{moved} idle watermarks written to the log")


@job(description="Remove what nobody needs any more.")
def iscp_gc() -> None:
    """Collect garbage."""
    gc()


@job(description="Bring the log's watermarks of idle indexes up to date.")
def iscp_flush() -> None:
    """Flush idle watermarks."""
    flush()


def housekeeping() -> tuple[list[JobDefinition], list[ScheduleDefinition]]:
    """Return the jobs and the hourly schedules that run them, on by default."""
    jobs = [iscp_gc, iscp_flush]
    schedules = [
        ScheduleDefinition(
            name=f"{one.name}_hourly",
            job=one,
            cron_schedule=f"{minute} * * * *",
            default_status=DefaultScheduleStatus.RUNNING,
        )
        for minute, one in ((7, iscp_gc), (37, iscp_flush))
    ]
    return jobs, schedules

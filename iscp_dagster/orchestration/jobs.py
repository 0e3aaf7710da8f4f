"""Jobs for the launchpad: a sync now, and housekeeping, which also runs by schedule."""

from datetime import UTC, datetime

from dagster import (
    Config,
    DefaultScheduleStatus,
    Failure,
    JobDefinition,
    OpExecutionContext,
    ScheduleDefinition,
    job,
    op,
)
from pydantic import Field

from iscp_dagster.errors import IscpError, UnknownJob
from iscp_dagster.joblog import JobLog
from iscp_dagster.maintenance.compact import compact_indexes
from iscp_dagster.maintenance.flush import flush_watermarks
from iscp_dagster.maintenance.gc import collect_garbage
from iscp_dagster.orchestration.resources import IscpResource
from iscp_dagster.orchestration.runs import flights
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import DEFAULT_ACCOUNT, TableKey


class SyncNow(Config):
    """What to bring up to date."""

    table: str = Field(default="", description="`DB.TABLE`; all tables of all accounts if empty.")
    jobs: list[str] = Field(default=[], description="Names of jobs; all of the table if empty.")
    account: str = Field(default=DEFAULT_ACCOUNT, description="Who owns the table.")
    attempts: int = Field(default=3, ge=1, le=100, description="How often a failing job is tried.")


@op(description="Bring indexes up to date now, as `iscp sync` does, in this run's process.")
def sync_now(context: OpExecutionContext, config: SyncNow, iscp: IscpResource) -> None:
    """Run ticks and iterations until the chosen jobs are caught up; fails if one can't be."""
    # It builds the definitions that this op is part of.
    from iscp_dagster.orchestration.sync import sync

    def told(iteration: Iteration, succeeded: bool) -> None:
        how = "done" if succeeded else "failed"
        jobs = ", ".join(iteration.job_names)
        context.log.info(f"{iteration.table} {iteration.kind} {iteration.window} {jobs}: {how}")

    try:
        tables = _chosen(iscp.log, config)
        report = sync(
            iscp.settings,
            context.instance,
            tables=tables,
            jobs=config.jobs,
            attempts=config.attempts,
            on_iteration=told,
        )
    except IscpError as error:
        raise Failure(str(error), allow_retries=False) from error
    context.log.info(report.summary)
    context.add_output_metadata(
        {"iscp/iterations": report.iterations, "iscp/summary": report.summary}
    )
    if report.behind:
        reasons = "; ".join(f"{job.key}: {reason}" for job, reason in report.behind)
        raise Failure(f"not caught up: {reasons}", allow_retries=False)


def _chosen(log: JobLog, config: SyncNow) -> list[TableKey]:
    """Return the tables to sync; a name that nobody has is refused rather than done in no time."""
    if not config.table:
        known = {job.key.name for job in log.jobs.list()}
        tables: list[TableKey] = []
    else:
        key = TableKey.parse(config.table, config.account)
        known = {job.key.name for job in log.jobs.list(table=log.tables.get(key).key)}
        tables = [key]
    for name in config.jobs:
        if name not in known:
            raise UnknownJob(f"job: {config.table or 'no table'} has no {name!r}")
    return tables


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


@op(description="Compact every index, merge its segments and remove its old versions.")
def compact(context: OpExecutionContext, iscp: IscpResource) -> None:
    """Put the indexes in order; fails at the end if one could not be."""
    report = compact_indexes(iscp.log, iscp.settings, context.log.info)
    context.log.info(str(report))
    if report.failed:
        raise Failure("; ".join(report.failed), allow_retries=False)


@job(description="Bring the indexes of a table up to date now; without a table, all of them.")
def iscp_sync_now() -> None:
    """Sync now."""
    sync_now()


@job(description="Remove what nobody needs any more.")
def iscp_gc() -> None:
    """Collect garbage."""
    gc()


@job(description="Bring the log's watermarks of idle indexes up to date.")
def iscp_flush() -> None:
    """Flush idle watermarks."""
    flush()


@job(description="Put every index in order, while searches and iterations go on.")
def iscp_compact() -> None:
    """Compact indexes."""
    compact()


def housekeeping() -> tuple[list[JobDefinition], list[ScheduleDefinition]]:
    """Return the jobs, and the schedules that run those which keep house."""
    jobs = [iscp_sync_now, iscp_gc, iscp_flush, iscp_compact]
    schedules = [
        ScheduleDefinition(
            name=f"{one.name}_hourly",
            job=one,
            cron_schedule=f"{minute} * * * *",
            default_status=DefaultScheduleStatus.RUNNING,
        )
        for minute, one in ((7, iscp_gc), (37, iscp_flush))
    ]
    schedules.append(
        ScheduleDefinition(
            name="iscp_compact_nightly",
            job=iscp_compact,
            cron_schedule="27 2 * * *",
            default_status=DefaultScheduleStatus.RUNNING,
        )
    )
    return jobs, schedules

"""Asset checks: is an index behind, does it have the right rows, are they right.

`lag` asks only the Delta log. `rows` and `checksum` compare an index with a build from scratch at
its watermark, through Spark. They run when somebody asks, and by schedule: an iteration never waits
for them.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    AssetSelection,
    DefaultScheduleStatus,
    ScheduleDefinition,
    define_asset_job,
    multi_asset_check,
)

from iscp_dagster.consumers.base import Comparison
from iscp_dagster.errors import IscpError
from iscp_dagster.iteration.compare import compare_index
from iscp_dagster.orchestration.names import op_name, output_name
from iscp_dagster.orchestration.resources import IscpResource, SparkResource
from iscp_dagster.rules.model import Job, JobKey, Table
from iscp_dagster.sources.lag import lag_seconds

LAG, ROWS, CHECKSUM = "lag", "rows", "checksum"
_DESCRIPTIONS = {
    LAG: "The oldest change that the index does not hold yet is within the job's target.",
    ROWS: "The index has as many rows as a build from scratch at its watermark.",
    CHECKSUM: "A sample of rows, one in sixteen, has the same checksum as a build from scratch.",
}


def index_checks(job: Job, table: Table) -> AssetChecksDefinition:
    """Build the checks of one job's index."""
    key = AssetKey(job.key.asset_path)

    @multi_asset_check(
        # One op per job: in a shared one, checks of jobs that read alike would get one name.
        name=f"{op_name(table.key)}_{output_name(job.key)}_checks",
        specs=[
            AssetCheckSpec(name, asset=key, description=text)
            for name, text in _DESCRIPTIONS.items()
        ],
        can_subset=True,
    )
    def check(
        context: AssetCheckExecutionContext, iscp: IscpResource, spark: SparkResource
    ) -> Iterator[AssetCheckResult]:
        wanted = {selected.name for selected in context.selected_asset_check_keys}
        yield from _check(key, job.key, table, wanted, iscp, spark)

    return check


def check_schedules(jobs: Sequence[Job]) -> list[ScheduleDefinition]:
    """Build the schedules of the checks: lag every quarter of an hour, content daily when on."""
    if not jobs:
        return []
    keys = [AssetKey(job.key.asset_path) for job in jobs]

    def schedule(name: str, checks: Sequence[str], cron: str, on: bool) -> ScheduleDefinition:
        selection = AssetSelection.checks(
            *(AssetCheckKey(key, check) for key in keys for check in checks)
        )
        return ScheduleDefinition(
            name=f"{name}_schedule",
            job=define_asset_job(name, selection),
            cron_schedule=cron,
            default_status=DefaultScheduleStatus.RUNNING if on else DefaultScheduleStatus.STOPPED,
        )

    return [
        schedule("iscp_check_lag", [LAG], "*/15 * * * *", on=True),
        # It reads every table and every index: not without being asked for.
        schedule("iscp_check_content", [ROWS, CHECKSUM], "17 3 * * *", on=False),
    ]


def _check(
    key: AssetKey,
    name: JobKey,
    table: Table,
    wanted: set[str],
    iscp: IscpResource,
    spark: SparkResource,
) -> Iterator[AssetCheckResult]:
    job = iscp.log.jobs.get(name)
    if LAG in wanted:
        yield _lag(key, job, table)
    if wanted & {ROWS, CHECKSUM}:
        try:
            found = compare_index(job, table, iscp.settings.warehouse, spark.spark_session)
        except IscpError as error:
            for check in sorted(wanted & {ROWS, CHECKSUM}):
                yield _result(key, check, False, {"iscp/reason": str(error)}, warn=True)
            return
        for check in sorted(wanted & {ROWS, CHECKSUM}):
            yield _compared(key, check, found)


def _lag(key: AssetKey, job: Job, table: Table) -> AssetCheckResult:
    lag = lag_seconds([job], {table.table_id: table}, datetime.now(UTC))[job.job_id]
    target = job.spec.lag_target.total_seconds()
    if lag is None:
        reason = "the index was never synced, or its table can't be read"
        return _result(key, LAG, False, {"iscp/reason": reason})
    return _result(
        key, LAG, lag <= target, {"iscp/lag_seconds": lag, "iscp/lag_target_seconds": target}
    )


def _compared(key: AssetKey, check: str, found: Comparison | None) -> AssetCheckResult:
    if found is None:
        return _result(key, check, False, {"iscp/reason": "there is no index yet"}, warn=True)
    passed = found.rows_found == found.rows_expected if check == ROWS else found.same
    return _result(
        key,
        check,
        passed,
        {
            "iscp/watermark": str(found.watermark),
            "iscp/rows_expected": found.rows_expected,
            "iscp/rows_found": found.rows_found,
            "iscp/rows_sampled": found.sampled,
        },
    )


def _result(
    key: AssetKey, check: str, passed: bool, metadata: dict[str, object], *, warn: bool = False
) -> AssetCheckResult:
    return AssetCheckResult(
        asset_key=key,
        check_name=check,
        passed=passed,
        metadata=metadata,  # pyright: ignore[reportArgumentType]
        severity=AssetCheckSeverity.WARN if warn else AssetCheckSeverity.ERROR,
    )

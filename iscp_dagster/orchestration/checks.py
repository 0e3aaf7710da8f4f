"""Asset checks: is an index behind, does it have the right rows, are they right.

`lag` asks only the Delta log. `rows` and `checksum` compare an index with a build from scratch at
its watermark, through Spark. `recall`, of vector indexes only, searches for a sample of the index's
own vectors with and without its centroids: the share of the true nearest that it names. They run
when somebody asks, and by schedule: an iteration never waits for them.
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
from iscp_dagster.stores.paths import index_uri

LAG, ROWS, CHECKSUM, RECALL = "lag", "rows", "checksum", "recall"
RECALL_QUERIES, RECALL_K = 50, 10
_DESCRIPTIONS = {
    LAG: "The oldest change that the index does not hold yet is within the job's target.",
    ROWS: "The index has as many rows as a build from scratch at its watermark.",
    CHECKSUM: "A sample of rows, one in sixteen, has the same checksum as a build from scratch.",
}
_RECALL = "A search names enough of the true nearest vectors, as an exact search finds them."


def index_checks(job: Job, table: Table) -> AssetChecksDefinition:
    """Build the checks of one job's index."""
    key = AssetKey(job.key.asset_path)

    @multi_asset_check(
        # One op per job: in a shared one, checks of jobs that read alike would get one name.
        name=f"{op_name(table.key)}_{output_name(job.key)}_checks",
        specs=[
            AssetCheckSpec(name, asset=key, description=text)
            for name, text in _checks_of(job).items()
        ],
        can_subset=True,
    )
    def check(
        context: AssetCheckExecutionContext, iscp: IscpResource, spark: SparkResource
    ) -> Iterator[AssetCheckResult]:
        wanted = {selected.name for selected in context.selected_asset_check_keys}
        yield from _check(key, job.key, table, wanted, iscp, spark)

    return check


def _checks_of(job: Job) -> dict[str, str]:
    """Return the checks that a job's index has, each with what it is for."""
    return {**_DESCRIPTIONS, RECALL: _RECALL} if job.spec.type == "vector" else _DESCRIPTIONS


def check_schedules(jobs: Sequence[Job]) -> list[ScheduleDefinition]:
    """Build the schedules of the checks: lag every quarter of an hour, content daily when on."""
    if not jobs:
        return []

    def schedule(
        name: str, checks: Sequence[str], cron: str, text: str, *, on: bool
    ) -> ScheduleDefinition:
        selection = AssetSelection.checks(
            *(
                AssetCheckKey(AssetKey(job.key.asset_path), check)
                for job in jobs
                for check in checks
                if check in _checks_of(job)
            )
        )
        return ScheduleDefinition(
            name=f"{name}_schedule",
            job=define_asset_job(name, selection, description=text),
            cron_schedule=cron,
            default_status=DefaultScheduleStatus.RUNNING if on else DefaultScheduleStatus.STOPPED,
        )

    return [
        schedule(
            "iscp_check_lag",
            [LAG],
            "*/15 * * * *",
            "Check that no index is further behind its table than its target.",
            on=True,
        ),
        # It reads every table and every index: not without being asked for.
        schedule(
            "iscp_check_content",
            [ROWS, CHECKSUM, RECALL],
            "17 3 * * *",
            "Compare each index with a build from scratch.",
            on=False,
        ),
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
    if RECALL in wanted:
        yield _recall(key, job, iscp.settings.warehouse)
    if wanted & {ROWS, CHECKSUM}:
        try:
            found = compare_index(job, table, iscp.settings.warehouse, spark.spark_session)
        except IscpError as error:
            for check in sorted(wanted & {ROWS, CHECKSUM}):
                yield _result(key, check, False, {"iscp/reason": str(error)}, warn=True)
            return
        for check in sorted(wanted & {ROWS, CHECKSUM}):
            yield _compared(key, check, job, found)


def _lag(key: AssetKey, job: Job, table: Table) -> AssetCheckResult:
    lag = lag_seconds([job], {table.table_id: table}, datetime.now(UTC))[job.job_id]
    target = job.spec.lag_target.total_seconds()
    if lag is None:
        reason = "the index was never synced, or its table can't be read"
        return _result(key, LAG, False, {"iscp/reason": reason})
    return _result(
        key, LAG, lag <= target, {"iscp/lag_seconds": lag, "iscp/lag_target_seconds": target}
    )


def _recall(key: AssetKey, job: Job, warehouse: str) -> AssetCheckResult:
    from iscp_dagster.consumers.vector import read_recall_floor
    from iscp_dagster.stores.lance_search import LanceReader

    floor = read_recall_floor(job.spec)
    try:
        reader = LanceReader.open(index_uri(warehouse, job.key, job.live_job_id))
    except IscpError as error:
        return _result(key, RECALL, False, {"iscp/reason": str(error)}, warn=True)
    # Another version, another sample: what one run misses, a later one sees.
    recall = reader.recall(RECALL_QUERIES, RECALL_K, seed=reader.version)
    found = {
        "iscp/recall": recall,
        "iscp/recall_floor": floor,
        "iscp/recall_k": RECALL_K,
        "iscp/recall_queries": min(RECALL_QUERIES, reader.rows),
        "iscp/watermark": str(reader.watermark),
        "iscp/rows_found": reader.rows,
    }
    if recall < floor:
        name = f"{job.key.db}.{job.key.table} {job.key.name}"
        found["iscp/reason"] = f"`iscp optimize {name} --retrain` trains the index anew"
    return _result(key, RECALL, recall >= floor, found)


def _compared(key: AssetKey, check: str, job: Job, found: Comparison | None) -> AssetCheckResult:
    if found is None:
        there = f"a {job.spec.type} index can't be compared with its table"
        reason = "there is no index yet" if job.is_new else there
        return _result(key, check, False, {"iscp/reason": reason}, warn=True)
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
            "iscp/rows_refused": found.rows_refused,
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

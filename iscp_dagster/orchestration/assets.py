"""Tables and jobs as Dagster assets.

Each table is an observable asset whose data version is its newest Delta version. The jobs of a
table are one multi-asset: a run selects the jobs of one iteration and one window of the table's
dynamic partitions.
"""

# Dagster reads the annotations of what it decorates: they stay objects here.

import warnings
from collections.abc import Iterator, Sequence

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetOut,
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    BetaWarning,
    DataVersion,
    MaterializeResult,
    Nothing,
    ObserveResult,
    multi_asset,
    multi_observable_source_asset,
)

from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.errors import UsageError
from iscp_dagster.orchestration.descriptions import describe_job, describe_table
from iscp_dagster.orchestration.iterate import iterate
from iscp_dagster.orchestration.metadata import table_metadata
from iscp_dagster.orchestration.names import (
    group_name,
    kind_name,
    observe_name,
    op_name,
    output_name,
)
from iscp_dagster.orchestration.partitions import Windows
from iscp_dagster.orchestration.resources import IscpResource, SparkResource
from iscp_dagster.rules.model import Job, Table, TableKey
from iscp_dagster.stores.paths import index_uri

_MOST_KINDS = 3
"""Dagster refuses an asset with more."""


def table_asset(table: Table, jobs: Sequence[Job]) -> AssetsDefinition:
    """Build the observable asset of a table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)
        return _table_asset(table, jobs)


def _table_asset(table: Table, jobs: Sequence[Job]) -> AssetsDefinition:
    # The decorator for one asset would name its op after the key, where `a-b` and `a_b` collide.
    @multi_observable_source_asset(
        name=observe_name(table.key),
        specs=[
            AssetSpec(
                AssetKey(table.key.asset_path),
                group_name=group_name(table.key),
                kinds={"delta", "table"},
                owners=[_account_owner(table.key)],
                description=describe_table(table, len(jobs)),
                metadata=table_metadata(table),
            )
        ],
    )
    def observe(iscp: IscpResource) -> ObserveResult:
        head = iscp.read_facts(table.uri).ts
        return ObserveResult(
            asset_key=AssetKey(table.key.asset_path),
            data_version=DataVersion(str(head.version)),
            metadata={"iscp/version": head.version, "iscp/head": str(head)},
        )

    return observe


def index_assets(table: Table, jobs: Sequence[Job], warehouse: str) -> AssetsDefinition:
    """Build the multi-asset of a table's jobs."""

    @multi_asset(
        name=op_name(table.key),
        outs={
            output_name(job.key): AssetOut.from_spec(
                _index_spec(job, table, warehouse), dagster_type=Nothing, is_required=False
            )
            for job in jobs
        },
        deps=[AssetKey(table.key.asset_path)],
        can_subset=True,
        partitions_def=Windows.of(table.key),
        backfill_policy=BackfillPolicy.multi_run(max_partitions_per_run=1),
    )
    def run(
        context: AssetExecutionContext, iscp: IscpResource, spark: SparkResource
    ) -> Iterator[MaterializeResult]:
        yield from iterate(context, table.key, iscp, spark)

    return run


def _index_spec(job: Job, table: Table, warehouse: str) -> AssetSpec:
    uri = index_uri(warehouse, job.key, job.live_job_id)
    return AssetSpec(
        AssetKey(job.key.asset_path),
        group_name=group_name(table.key),
        kinds=_kinds(job),
        owners=list(job.spec.owners) or [_account_owner(table.key)],
        description=describe_job(job, table, uri),
        metadata={"dagster/uri": uri, "iscp/job_id": job.job_id},
    )


def _account_owner(table: TableKey) -> str:
    """Who owns what nobody is named for: the account."""
    return f"team:{table.account}"


def _kinds(job: Job) -> set[str]:
    """Return the type of a job and what its index is stored in."""
    try:
        stores = sorted(get_consumer_class(job.spec.type).kinds)
    except UsageError:
        # The plug-in that made this job is not installed here: the asset stays visible.
        stores = []
    kinds = dict.fromkeys(map(kind_name, (job.spec.type, *stores)))
    return set(list(kinds)[:_MOST_KINDS])

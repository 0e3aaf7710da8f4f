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
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    BetaWarning,
    DataVersion,
    DynamicPartitionsDefinition,
    MaterializeResult,
    ObserveResult,
    SourceAsset,
    multi_asset,
    observable_source_asset,
)

from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.errors import UsageError
from iscp_dagster.orchestration.descriptions import describe_job, describe_table
from iscp_dagster.orchestration.iterate import iterate
from iscp_dagster.orchestration.metadata import table_metadata
from iscp_dagster.orchestration.names import group_name, op_name, partitions_name
from iscp_dagster.orchestration.resources import IscpResource, SparkResource
from iscp_dagster.rules.model import Job, Table
from iscp_dagster.stores.paths import index_uri


def table_asset(table: Table, jobs: Sequence[Job]) -> SourceAsset:
    """Build the observable asset of a table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)
        return _table_asset(table, jobs)


def _table_asset(table: Table, jobs: Sequence[Job]) -> SourceAsset:
    @observable_source_asset(
        key=AssetKey(table.key.asset_path),
        group_name=group_name(table.key),
        tags={"dagster/kind/delta": "", "dagster/kind/table": ""},
        description=describe_table(table, len(jobs)),
        metadata=table_metadata(table),
    )
    def observe(iscp: IscpResource) -> ObserveResult:
        head = iscp.read_facts(table.uri).ts
        return ObserveResult(
            data_version=DataVersion(str(head.version)),
            metadata={"iscp/version": head.version, "iscp/head": str(head)},
        )

    return observe


def index_assets(table: Table, jobs: Sequence[Job], warehouse: str) -> AssetsDefinition:
    """Build the multi-asset of a table's jobs."""

    @multi_asset(
        name=op_name(table.key),
        specs=[_index_spec(job, table, warehouse) for job in jobs],
        can_subset=True,
        partitions_def=DynamicPartitionsDefinition(name=partitions_name(table.key)),
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
        deps=[AssetKey(table.key.asset_path)],
        group_name=group_name(table.key),
        kinds={*_store_kinds(job), job.spec.type},
        owners=list(job.spec.owners),
        description=describe_job(job, table, uri),
        metadata={"dagster/uri": uri, "iscp/job_id": job.job_id},
        skippable=True,
    )


def _store_kinds(job: Job) -> frozenset[str]:
    try:
        return get_consumer_class(job.spec.type).kinds
    except UsageError:
        # The plug-in that made this job is not installed here: the asset stays visible.
        return frozenset()

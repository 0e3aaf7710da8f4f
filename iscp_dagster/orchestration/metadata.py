"""Metadata of tables and materializations, as the Dagster UI shows and plots it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster import (
    AssetKey,
    MaterializeResult,
    MetadataValue,
    TableColumn,
    TableColumnDep,
    TableColumnLineage,
    TableSchema,
)

from iscp_dagster.consumers.base import IndexPlace
from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.errors import IscpError
from iscp_dagster.iteration.request import IterationReport, JobReport, Tools
from iscp_dagster.rules.model import TS, Table
from iscp_dagster.sources.facts import TableFacts, read_facts
from iscp_dagster.sources.lag import lag_seconds

_INTERNAL = "_iscp_"


def table_metadata(table: Table) -> dict[str, Any]:
    """Describe a source table; one that can't be read now still gets its asset."""
    metadata: dict[str, Any] = {
        "dagster/uri": table.uri,
        "dagster/table_name": f"{table.key.db}.{table.key.table}",
        "iscp/pk": ", ".join(table.pk),
    }
    try:
        metadata["dagster/column_schema"] = column_schema(read_facts(table.uri))
    except IscpError as error:
        metadata["iscp/unreadable"] = str(error)
    return metadata


def column_schema(facts: TableFacts) -> TableSchema:
    """Turn a Delta schema into Dagster's, but for the columns that an index keeps for itself."""
    return TableSchema(
        [
            TableColumn(column.name, column.type)
            for column in facts.columns
            if not column.name.startswith(_INTERNAL)
        ]
    )


def materialization(report: IterationReport, job: JobReport, tools: Tools) -> MaterializeResult:
    """Tell Dagster that an index advanced, with its watermark and what it took."""
    result = job.result
    assert result is not None
    metadata: dict[str, Any] = {
        "iscp/window": report.window.partition_key,
        "iscp/from_ts": _timestamp(report.window.start),
        "iscp/to_ts": _timestamp(report.window.end),
        "iscp/watermark": _timestamp(result.watermark),
        "iscp/source_version": result.watermark.version,
        "iscp/kind": "no-op" if result.no_op else str(report.kind),
        "iscp/rows_scanned": report.rows_scanned,
        "iscp/rows_upserted": result.rows_upserted,
        "iscp/rows_deleted": result.rows_deleted,
        "iscp/rows_skipped": result.rows_skipped,
        "iscp/shared_by": ", ".join(other.key.name for other in report.jobs),
        "iscp/scan_seconds": round(report.scan_seconds, 3),
        "iscp/consumer_seconds": round(result.seconds, 3),
        "iscp/job_id": job.job_id,
        "dagster/uri": job.uri,
        **_lag(report, job, tools),
        **_freshness(report, tools),
        **_schema(job),
        **_lineage(report, job),
    }
    if result.rows_refused:
        metadata["iscp/rows_refused"] = result.rows_refused
        metadata["iscp/refused_keys"] = ", ".join(result.refused_keys)
    if result.row_count is not None:
        metadata["dagster/row_count"] = result.row_count
    return MaterializeResult(asset_key=AssetKey(job.key.asset_path), metadata=metadata)


def _lag(report: IterationReport, job: JobReport, tools: Tools) -> Mapping[str, Any]:
    if job.job is None:
        return {}
    tables = {report.table.table_id: report.table}
    lag = lag_seconds([job.job], tables, tools.now())[job.job_id]
    return {} if lag is None else {"iscp/lag_seconds": round(lag, 3)}


def _freshness(report: IterationReport, tools: Tools) -> Mapping[str, Any]:
    """Tell how long it took from the window's last commit until its changes could be found."""
    if report.window.start.is_zero:
        return {}
    seconds = (tools.now() - report.window.end.time).total_seconds()
    return {"iscp/freshness_seconds": round(max(0.0, seconds), 3)}


def _schema(job: JobReport) -> Mapping[str, Any]:
    try:
        if job.job is not None and "lance" in get_consumer_class(job.job.spec.type).kinds:
            return {"dagster/column_schema": _lance_schema(job.uri)}
        return {"dagster/column_schema": column_schema(read_facts(job.uri))}
    except IscpError:
        # A plug-in's store may be neither.
        return {}


def _lance_schema(uri: str) -> TableSchema:
    """Return what a Lance index holds, under the table's names."""
    from iscp_dagster.stores.lance_search import LanceReader

    reader = LanceReader.open(uri)
    types = {field.name: str(field.type) for field in reader.dataset.schema}
    named = {name: types.pop(stored) for name, stored in reader.stored.items()}
    vectors = {name: type_ for name, type_ in types.items() if not name.startswith("_")}
    return TableSchema([TableColumn(*column) for column in (named | vectors).items()])


def _lineage(report: IterationReport, job: JobReport) -> Mapping[str, Any]:
    """Tell which columns of the table each column of the index is made from."""
    if job.job is None:
        return {}
    place = IndexPlace(job.key, job.job_id, job.uri)
    lineage = get_consumer_class(job.job.spec.type)(place).lineage()
    table = AssetKey(report.table.key.asset_path)
    return {
        "dagster/column_lineage": TableColumnLineage(
            {
                column: [TableColumnDep(table, name) for name in made_from]
                for column, made_from in lineage.items()
            }
        )
    }


def _timestamp(ts: TS) -> MetadataValue:
    return MetadataValue.timestamp(ts.time.timestamp())

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


def table_metadata(table: Table) -> dict[str, Any]:
    """Describe a source table; one that can't be read now still gets its asset."""
    metadata: dict[str, Any] = {"dagster/uri": table.uri, "iscp/pk": ", ".join(table.pk)}
    try:
        metadata["dagster/column_schema"] = column_schema(read_facts(table.uri))
    except IscpError as error:
        metadata["iscp/unreadable"] = str(error)
    return metadata


def column_schema(facts: TableFacts) -> TableSchema:
    """Turn a Delta schema into Dagster's."""
    return TableSchema([TableColumn(column.name, column.type) for column in facts.columns])


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
        **_schema(job.uri),
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


def _schema(uri: str) -> Mapping[str, Any]:
    try:
        return {"dagster/column_schema": column_schema(read_facts(uri))}
    except IscpError:
        # Not every store is a Delta table.
        return {}


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

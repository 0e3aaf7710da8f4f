"""Jobs and iterations as rows for people and machines: the same names in the CLI and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from iscp_dagster.joblog import JobLog
from iscp_dagster.joblog.iterations import IterationRecord
from iscp_dagster.joblog.rows import UnreadableRow
from iscp_dagster.rules.model import DEFAULT_ACCOUNT, Job, TableKey, check_name
from iscp_dagster.settings import Settings
from iscp_dagster.stores.paths import index_uri

JOB_FIELDS = (
    "account",
    "db",
    "table",
    "job",
    "job_id",
    "type",
    "trigger",
    "state",
    "watermark",
    "version",
    "lag_seconds",
    "attempt",
    "next_attempt_at",
    "error_code",
    "error_msg",
    "uri",
    "progress",
)
"""What a row of `iscp jobs --json` has, in this order; unknown values are null."""


def job_views(
    *, state: str | None = None, account: str | None = None, table: str | None = None
) -> list[dict[str, Any]]:
    """Describe the live jobs, one row each."""
    from iscp_dagster import api
    from iscp_dagster.sources.lag import lag_seconds

    settings = Settings.from_env()
    with JobLog.open(settings) as log:
        found = api.get_jobs(state, account=account, table=table, log=log)
        tables = {known.table_id: known for known in log.tables.list(account)}
    lags = lag_seconds([job for job in found if isinstance(job, Job)], tables, datetime.now(UTC))
    return [_job_view(job, settings, lags) for job in found]


def job_status_view(table: str, job: str, *, account: str) -> dict[str, Any]:
    """Describe one job with everything the log knows of it."""
    from iscp_dagster import api
    from iscp_dagster.sources.lag import lag_seconds

    settings = Settings.from_env()
    with JobLog.open(settings) as log:
        found = api.get_job(table, job, account=account, log=log)
        tables = {found.table_id: log.tables.get(found.key.table_key)}
    lags = lag_seconds([found], tables, datetime.now(UTC))
    status = found.status
    return {
        **_job_view(found, settings, lags),
        "stage": str(found.stage),
        "paused_at": found.paused_at,
        "spec": found.spec.model_dump(mode="json"),
        "from_ts": _text(status.from_ts),
        "to_ts": _text(status.to_ts),
        "start_at": status.start_at,
        "end_at": status.end_at,
        "run_id": status.run_id or None,
        "create_at": found.create_at,
    }


def iteration_views(
    *, table: str | None = None, limit: int = 20, account: str | None = None
) -> list[dict[str, Any]]:
    """Describe the newest iterations first."""
    if account is not None:
        check_name("account", account)
    key = None if table is None else TableKey.parse(table, account or DEFAULT_ACCOUNT)
    with JobLog.open(Settings.from_env()) as log:
        records = log.iterations.list(account=account, table=key, limit=limit)
    return [_iteration_view(record) for record in records]


def _job_view(
    job: Job | UnreadableRow, settings: Settings, lags: Mapping[int, float | None]
) -> dict[str, Any]:
    key = job.key
    names = {"account": key.account, "db": key.db, "table": key.table, "job": key.name}
    if isinstance(job, UnreadableRow):
        row = {**names, "job_id": job.job_id, "state": "unreadable", "error_msg": job.reason}
        return {field: row.get(field) for field in JOB_FIELDS}
    return {
        **names,
        "job_id": job.job_id,
        "type": job.spec.type,
        "trigger": job.spec.trigger.kind,
        "state": str(job.state),
        "watermark": str(job.watermark),
        "version": None if job.watermark.is_zero else job.watermark.version,
        "lag_seconds": lags.get(job.job_id),
        "attempt": job.attempt,
        "next_attempt_at": job.next_attempt_at,
        "error_code": job.status.error_code,
        "error_msg": job.status.error_msg,
        "uri": index_uri(settings.warehouse, key, job.live_job_id),
        "progress": _progress(job),
    }


def _progress(job: Job) -> str | None:
    """Say how far a first sync is, or why nothing moves."""
    if job.paused_at is not None:
        return f"paused since {job.paused_at:%Y-%m-%dT%H:%M:%SZ}"
    return job.status.progress or None


def _iteration_view(record: IterationRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "account": record.table.account,
        "table": f"{record.table.db}.{record.table.table}",
        "jobs": list(record.job_names),
        "window": record.window.partition_key,
        "from_ts": str(record.window.start),
        "to_ts": str(record.window.end),
        "kind": str(record.kind),
        "run_id": record.run_id,
        "attempt": record.attempt,
        "rows_scanned": record.rows_scanned,
        "bytes_scanned": record.bytes_scanned,
        "rows_upserted": sum(consumer.rows_upserted for consumer in record.consumers),
        "rows_deleted": sum(consumer.rows_deleted for consumer in record.consumers),
        "rows_skipped": sum(consumer.rows_skipped for consumer in record.consumers),
        "seconds": record.seconds,
        "start_at": record.start_at,
        "end_at": record.end_at,
        "errors": [
            f"{consumer.job_name}: {consumer.error_msg} ({consumer.error_code})"
            for consumer in record.consumers
            if consumer.error_code
        ],
        "consumers": [
            {
                "job": consumer.job_name,
                "job_id": consumer.job_id,
                "rows_upserted": consumer.rows_upserted,
                "rows_deleted": consumer.rows_deleted,
                "rows_skipped": consumer.rows_skipped,
                "seconds": consumer.seconds,
                "error_code": consumer.error_code,
                "error_msg": consumer.error_msg,
            }
            for consumer in record.consumers
        ],
    }


def _text(value: object | None) -> str | None:
    return None if value is None else str(value)

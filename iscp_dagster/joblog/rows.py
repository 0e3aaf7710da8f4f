"""Rows of the log as values, and back.

A row that this version can't read (written by a newer one, or damaged) becomes an `UnreadableRow`
in place of its job: the others go on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Row, select

from iscp_dagster.errors import UsageError
from iscp_dagster.joblog.schema import iscp_tables, mo_iscp_log
from iscp_dagster.rules.model import (
    TS,
    Job,
    JobKey,
    JobState,
    JobStatus,
    Stage,
    Table,
    TableKey,
)
from iscp_dagster.rules.spec import JobSpec


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row of the log that this version does not understand."""

    key: JobKey
    job_id: int
    table_id: int
    change_seq: int
    reason: str
    drop_at: datetime | None = None


def jobs_query():
    """Select job rows together with the names of their tables."""
    return select(mo_iscp_log, iscp_tables.c.db_name, iscp_tables.c.table_name).join(
        iscp_tables, iscp_tables.c.table_id == mo_iscp_log.c.table_id
    )


def to_table(row: Row[Any]) -> Table:
    """Read a row of `iscp_tables`."""
    return Table(
        key=TableKey(row.account_id, row.db_name, row.table_name),
        table_id=row.table_id,
        uri=row.uri,
        pk=tuple(json.loads(row.pk_columns)),
        delta_id=row.delta_id,
        added_at=row.added_at,
    )


def to_job(row: Row[Any]) -> Job | UnreadableRow:
    """Read a row of `jobs_query`."""
    key = JobKey(row.account_id, row.db_name, row.table_name, row.job_name)
    try:
        return Job(
            key=key,
            job_id=row.job_id,
            table_id=row.table_id,
            spec=_spec(row.job_spec),
            state=JobState(row.job_state),
            watermark=TS.parse(row.watermark),
            stage=Stage(row.stage),
            status=read_status(row.job_status),
            attempt=row.attempt,
            next_attempt_at=row.next_attempt_at,
            live_job_id=row.live_job_id,
            lsn=row.lsn,
            change_seq=row.change_seq,
            create_at=row.create_at,
            drop_at=row.drop_at,
            paused_at=row.paused_at,
        )
    except (ValueError, TypeError, AttributeError, UsageError) as error:
        reason = f"the log's row can't be read by this version: {_first_problem(error)}"
        return UnreadableRow(key, row.job_id, row.table_id, row.change_seq, reason, row.drop_at)


_specs: dict[str, JobSpec] = {}


def _spec(text: str) -> JobSpec:
    """Parse a spec; jobs by the thousand share few distinct ones."""
    spec = _specs.get(text)
    if spec is None:
        if len(_specs) > 10_000:
            _specs.clear()
        spec = _specs[text] = JobSpec.model_validate_json(text)
    return spec


def write_status(status: JobStatus) -> str:
    """Turn a status into the JSON of `job_status`; empty fields are left out."""
    values = {
        "from_ts": _text(status.from_ts),
        "to_ts": _text(status.to_ts),
        "start_at": _time_text(status.start_at),
        "end_at": _time_text(status.end_at),
        "run_id": status.run_id,
        "error_code": status.error_code,
        "error_msg": status.error_msg,
        "progress": status.progress,
    }
    return json.dumps({name: value for name, value in values.items() if value})


def read_status(text: str) -> JobStatus:
    """Read the JSON of `job_status`."""
    if text == "{}":
        return _NO_STATUS
    values = json.loads(text)
    return JobStatus(
        from_ts=_ts(values.get("from_ts")),
        to_ts=_ts(values.get("to_ts")),
        start_at=_time(values.get("start_at")),
        end_at=_time(values.get("end_at")),
        run_id=values.get("run_id", ""),
        error_code=values.get("error_code", 0),
        error_msg=values.get("error_msg", ""),
        progress=values.get("progress", ""),
    )


_NO_STATUS = JobStatus()


def _text(value: TS | None) -> str | None:
    return None if value is None else str(value)


def _ts(value: str | None) -> TS | None:
    return None if value is None else TS.parse(value)


def _time_text(value: datetime | None) -> str | None:
    return None if value is None else value.astimezone(UTC).isoformat()


def _time(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)


def _first_problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False)[0]
        where = ".".join(("job_spec", *map(str, problem["loc"])))
        return f"{where}: {problem['msg']}"
    return " ".join(str(error).split())[:300]

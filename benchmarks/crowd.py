"""A log full of jobs, all of them caught up with their tables.

A *crowd* is many tables with the same few jobs on each: most of them share, one goes on its own,
one is greedy, one is periodic. Rows are put into the log at once, as registering and syncing job by
job would leave them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from sqlalchemy import Connection, create_engine, insert, update

from iscp_dagster.joblog import JobLog
from iscp_dagster.joblog.schema import iscp_counters, iscp_tables, mo_iscp_log
from iscp_dagster.rules.model import TS, JobState, Stage, Table
from iscp_dagster.rules.spec import JobSpec, TriggerSpec

PERIOD = "60s"
_APART = (
    TriggerSpec(independent=True),
    TriggerSpec(kind="greedy"),
    TriggerSpec.model_validate({"kind": "periodic", "interval": PERIOD}),
)


def fill_log(
    database: Path,
    tables: Sequence[Table],
    jobs_per_table: int,
    version: int,
    priority: Callable[[Table], int] = lambda _: 0,
) -> str:
    """Put the tables and their jobs into a new log, and return its URL.

    Args:
        database: The SQLite file to make.
        tables: Where the jobs are; a table's `table_id` is kept.
        jobs_per_table: How many jobs each table gets.
        version: Where all watermarks stand, as of now.
        priority: The priority of a table's jobs.
    """
    url = f"sqlite:///{database}"
    with JobLog(url) as log:
        log.jobs.list()  # The first use makes the schema.
    engine = create_engine(url)
    with engine.begin() as connection:
        _insert(connection, tables, jobs_per_table, version, priority)
    engine.dispose()
    return url


def _insert(
    connection: Connection,
    tables: Sequence[Table],
    jobs_per_table: int,
    version: int,
    priority: Callable[[Table], int],
) -> None:
    now = datetime.now(UTC)
    watermark = str(TS(version, now))
    table_rows = [
        {
            "table_id": table.table_id,
            "account_id": table.key.account,
            "db_name": table.key.db,
            "table_name": table.key.table,
            "uri": table.uri,
            "pk_columns": json.dumps(list(table.pk)),
            "delta_id": table.delta_id,
            "added_at": now,
        }
        for table in tables
    ]
    job_rows = [
        {
            "account_id": table.key.account,
            "table_id": table.table_id,
            "job_name": f"job-{place}",
            "job_id": (job_id := number * jobs_per_table + place + 1),
            "job_spec": _spec_text(place, jobs_per_table, priority(table)),
            "job_state": JobState.COMPLETED,
            "watermark": watermark,
            "job_status": "{}",
            "create_at": now,
            "stage": Stage.TAIL,
            "attempt": 0,
            "live_job_id": job_id,
            "lsn": 1,
            "change_seq": job_id,
        }
        for number, table in enumerate(tables)
        for place in range(jobs_per_table)
    ]
    connection.execute(insert(iscp_tables), table_rows)
    connection.execute(insert(mo_iscp_log), job_rows)
    connection.execute(update(iscp_counters).values(value=len(job_rows)))


@cache
def _spec_text(place: int, jobs_per_table: int, priority: int) -> str:
    """The last jobs of a table go apart, as far as there are others that share."""
    from_the_end = jobs_per_table - 1 - place
    apart = from_the_end < min(len(_APART), jobs_per_table // 2)
    trigger = _APART[from_the_end] if apart else TriggerSpec()
    return JobSpec(type="mirror", trigger=trigger, priority=priority).model_dump_json()

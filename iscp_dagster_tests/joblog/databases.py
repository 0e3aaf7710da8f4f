"""Databases for tests of the log: fresh ones, full ones, and what is in them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, MetaData, bindparam, create_engine, make_url, select, text
from sqlalchemy.schema import CreateSchema, DropSchema

from iscp_dagster.joblog import JobLog
from iscp_dagster.joblog.schema import UtcTime
from iscp_dagster.rules.model import JobKey, TableKey
from iscp_dagster.rules.spec import JobSpec

NOW = datetime(2026, 11, 18, 5, 49, 0, 123000, tzinfo=UTC)
TABLE = TableKey("sys", "shop", "orders")


_FILL_TABLES = """
    with recursive n(i) as (select 0 union all select i + 1 from n where i < :jobs / :per_table)
    insert into iscp_tables
        (table_id, account_id, db_name, table_name, uri, pk_columns, delta_id, added_at)
    select i + 1, 'sys', 'shop', 't' || i, '/data/t' || i, '["id"]', 'd', :now from n
"""
_FILL_JOBS = """
    with recursive n(i) as (select 1 union all select i + 1 from n where i < :jobs)
    insert into mo_iscp_log
        (account_id, table_id, job_name, job_id, job_spec, job_state, watermark, job_status,
        create_at, stage, attempt, live_job_id, lsn, change_seq)
    select 'sys', i / :per_table + 1, 'job-' || i, i, :spec, 'completed', '0', '{}',
        :now, 'init', 0, i, 0, i from n
"""


def plain_engine(url: str, **options: Any) -> Engine:
    """An engine beside the log's own, with the driver that the log uses."""
    where = make_url(url)
    if where.drivername == "postgresql":
        where = where.set(drivername="postgresql+psycopg2")
    return create_engine(where, **options)


@contextmanager
def fresh_sqlite(folder: Path) -> Iterator[str]:
    """The URL of a log file that does not exist yet."""
    yield f"sqlite:///{folder / f'{uuid.uuid4().hex}.db'}"


@contextmanager
def fresh_postgresql(server: str, options: str = "") -> Iterator[str]:
    """The URL of an empty schema on a server, with options for its sessions; it goes away."""
    schema = f"iscp_{uuid.uuid4().hex}"
    engine = plain_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(CreateSchema(schema))
    # The schema's name is also the sessions' application name, so that a test can find them.
    query = {"options": f"-csearch_path={schema} {options}", "application_name": schema}
    try:
        yield make_url(server).update_query_dict(query).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(DropSchema(schema, cascade=True))
        engine.dispose()


def add_table(log: JobLog, key: TableKey = TABLE) -> TableKey:
    """Record a table whose facts do not matter."""
    log.tables.add(key, uri=f"/data/{key}", pk=("id",), delta_id="d-1", now=NOW)
    return key


def add_job(log: JobLog, name: str, table: TableKey = TABLE, **fields: Any) -> JobKey:
    """Register a job on a table that is recorded already."""
    key = table.job(name)
    assert log.jobs.register(key, JobSpec(type="mirror", **fields), NOW)
    return key


def dump(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Everything in a log: the rows of each table, and its columns."""
    engine = plain_engine(url)
    try:
        metadata = MetaData()
        with engine.connect() as connection:
            metadata.reflect(connection)
            found: dict[str, list[tuple[Any, ...]]] = {}
            for table in metadata.sorted_tables:
                rows = sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
                found[table.name] = [tuple(column.name for column in table.columns), *rows]
            return found
    finally:
        engine.dispose()


def execute(url: str, statement: str, **parameters: Any) -> None:
    """Run one statement behind the log's back."""
    engine = plain_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement), parameters)
    engine.dispose()


def fill(url: str, jobs: int, per_table: int = 10) -> None:
    """Put many jobs into an empty log at once, `job-1` to `job-<n>`, as if registered in turn.

    Job i is on table `shop.t<i // per_table>` of the default account and has change number i.
    """
    spec = JobSpec(type="mirror").model_dump_json()
    with JobLog(url) as log:
        assert not log.jobs.list(), "fill a log that is empty"
    now = bindparam("now", NOW, UtcTime)
    sizes = {"jobs": jobs, "per_table": per_table}
    engine = plain_engine(url)
    with engine.begin() as connection:
        connection.execute(text(_FILL_TABLES).bindparams(now), sizes)
        connection.execute(text(_FILL_JOBS).bindparams(now), {**sizes, "spec": spec})
        connection.execute(text("update iscp_counters set value = :jobs"), {"jobs": jobs})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("analyze"))
    engine.dispose()


def filled_key(number: int, per_table: int = 10) -> JobKey:
    """The key of job number i of `fill`."""
    return TableKey("sys", "shop", f"t{number // per_table}").job(f"job-{number}")

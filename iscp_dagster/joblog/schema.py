"""The log's tables, and how they come into being.

`mo_iscp_log` has a row per job generation, `mo_iscp_iterations` a row per iteration and one per
consumer in it, `iscp_tables` a row per source table. `iscp_counters` hands out the numbers that
order everything: `change` (the change sequence readers subscribe to) and `job` (generations).
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Dialect,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    insert,
    inspect,
    select,
)

from iscp_dagster.errors import LogSchemaTooNew

SCHEMA_VERSION = 1

metadata = MetaData()


class UtcTime(TypeDecorator[datetime]):
    """A time in UTC on every database, also where the database has no time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Store UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Read UTC; SQLite hands back a time without its zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# SQLite numbers rows by itself only where the key is an INTEGER.
_Id = BigInteger().with_variant(Integer, "sqlite")
# Names sort by their characters everywhere, as Python and SQLite do, not by a server's locale.
_Name = String(128).with_variant(String(128, collation="C"), "postgresql")

iscp_schema = Table("iscp_schema", metadata, Column("version", Integer, primary_key=True))

iscp_counters = Table(
    "iscp_counters",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

iscp_tables = Table(
    "iscp_tables",
    metadata,
    Column("table_id", _Id, primary_key=True, autoincrement=True),
    Column("account_id", _Name, nullable=False),
    Column("db_name", _Name, nullable=False),
    Column("table_name", _Name, nullable=False),
    Column("uri", Text, nullable=False),
    Column("pk_columns", Text, nullable=False),
    Column("delta_id", String(64), nullable=False),
    Column("added_at", UtcTime, nullable=False),
    Column("drop_at", UtcTime),
    # A table_id is never handed out twice: dropped jobs may still point at it.
    sqlite_autoincrement=True,
)
Index(
    "iscp_tables_live",
    iscp_tables.c.account_id,
    iscp_tables.c.db_name,
    iscp_tables.c.table_name,
    unique=True,
    sqlite_where=iscp_tables.c.drop_at.is_(None),
    postgresql_where=iscp_tables.c.drop_at.is_(None),
)

mo_iscp_log = Table(
    "mo_iscp_log",
    metadata,
    Column("account_id", _Name, primary_key=True),
    Column("table_id", BigInteger, primary_key=True, autoincrement=False),
    Column("job_name", _Name, primary_key=True),
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("job_spec", Text, nullable=False),
    Column("job_state", String(16), nullable=False),
    Column("watermark", String(64), nullable=False),
    Column("job_status", Text, nullable=False),
    Column("create_at", UtcTime, nullable=False),
    Column("drop_at", UtcTime),
    Column("paused_at", UtcTime),
    Column("stage", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("next_attempt_at", UtcTime),
    # The generation that answers queries: this row's own, or the one it is being built to replace.
    Column("live_job_id", BigInteger, nullable=False),
    # The compare-and-set token of state and watermark; spec changes leave it alone.
    Column("lsn", BigInteger, nullable=False),
    Column("change_seq", BigInteger, nullable=False),
)
Index("mo_iscp_log_changes", mo_iscp_log.c.change_seq)
Index("mo_iscp_log_job_id", mo_iscp_log.c.job_id, unique=True)
_is_live = mo_iscp_log.c.drop_at.is_(None) & (mo_iscp_log.c.live_job_id == mo_iscp_log.c.job_id)
Index(
    "mo_iscp_log_one_live",
    mo_iscp_log.c.account_id,
    mo_iscp_log.c.table_id,
    mo_iscp_log.c.job_name,
    unique=True,
    sqlite_where=_is_live,
    postgresql_where=_is_live,
)

mo_iscp_iterations = Table(
    "mo_iscp_iterations",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    # Null for the iteration itself; its consumers' rows point at it.
    Column("iteration_id", BigInteger),
    Column("account_id", _Name, nullable=False),
    Column("table_id", BigInteger, nullable=False),
    Column("job_names", Text, nullable=False),
    Column("job_id", BigInteger),
    Column("from_ts", String(64), nullable=False),
    Column("to_ts", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("session_id", String(64)),
    Column("attempt", Integer, nullable=False),
    Column("rows_scanned", BigInteger),
    Column("bytes_scanned", BigInteger),
    Column("rows_upserted", BigInteger),
    Column("rows_deleted", BigInteger),
    Column("rows_skipped", BigInteger),
    Column("seconds", Float),
    Column("error_json", Text),
    Column("start_at", UtcTime, nullable=False),
    Column("heartbeat_at", UtcTime),
    Column("end_at", UtcTime),
)
Index("mo_iscp_iterations_run", mo_iscp_iterations.c.run_id)
Index("mo_iscp_iterations_parent", mo_iscp_iterations.c.iteration_id)
Index("mo_iscp_iterations_open", mo_iscp_iterations.c.end_at, mo_iscp_iterations.c.heartbeat_at)
Index("mo_iscp_iterations_table", mo_iscp_iterations.c.table_id, mo_iscp_iterations.c.id)


def schema_exists(connection: Connection) -> bool:
    """Say whether the tables are there; refuse a log from a newer version."""
    if not inspect(connection).has_table(iscp_schema.name):
        return False
    found = connection.scalar(select(iscp_schema.c.version))
    if found is not None and found > SCHEMA_VERSION:
        raise LogSchemaTooNew(
            f"the log has schema version {found}, this code knows {SCHEMA_VERSION}"
        )
    return found is not None


def ensure_schema(connection: Connection) -> None:
    """Create the tables where there are none; refuse a log from a newer version untouched."""
    if schema_exists(connection):
        return
    metadata.create_all(connection)
    connection.execute(insert(iscp_schema).values(version=SCHEMA_VERSION))
    connection.execute(
        insert(iscp_counters), [{"name": name, "value": 0} for name in ("change", "job")]
    )

"""The log's database: one engine, reads and ordered writes.

Every write transaction first takes the next number of the change sequence and keeps its row locked
until the commit. So writers queue up, sequence numbers appear in commit order, and a reader that
has seen number n can't miss a smaller one later. Under READ COMMITTED each statement after the
lock sees what the writers before have committed.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text, update
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    InterfaceError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from iscp_dagster.errors import LogUnavailable, UsageError
from iscp_dagster.joblog.schema import ensure_schema, iscp_counters, schema_exists

_BUSY_TIMEOUT_MS = 60_000
_STALLED_TIMEOUT_MS = 60_000
_CONNECT_TIMEOUT_S = 10
_SCHEMA_LOCK = 0x15C9
"""Key of the PostgreSQL advisory lock that lets one process at a time create the schema."""


@dataclass(frozen=True, slots=True)
class Write:
    """An open write transaction and its place in the change sequence."""

    connection: Connection
    change_seq: int

    def next_number(self, counter: str) -> int:
        """Hand out the next number of a counter; numbers grow in commit order."""
        return _bump(self.connection, counter)


class Database:
    """Where the log lives; the schema is created at first use."""

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self._ready = False
        self._lock = threading.Lock()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read transaction."""
        self._ensure_schema()
        with _translated(self.engine), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Write]:
        """Open a write transaction; all writers queue up here."""
        with self.touch() as connection:
            yield Write(connection, _bump(connection, "change"))

    @contextmanager
    def touch(self) -> Iterator[Connection]:
        """Open a write transaction for what nobody subscribes to (iterations, heartbeats)."""
        self._ensure_schema()
        with _translated(self.engine), self._writing() as connection:
            yield connection

    def close(self) -> None:
        """Give back all connections."""
        self.engine.dispose()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            connection.execution_options(iscp_write=True)
            with connection.begin():
                yield connection

    def _ensure_schema(self) -> None:
        if self._ready:
            return
        with self._lock, _translated(self.engine):
            # Look before locking: a reader of a log that is there waits for no writer.
            with self.engine.connect() as connection, connection.begin():
                exists = schema_exists(connection)
            if not exists:
                with self._writing() as connection:
                    if connection.dialect.name == "postgresql":
                        connection.execute(
                            text("select pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK}
                        )
                    ensure_schema(connection)
            self._ready = True


def _bump(connection: Connection, counter: str) -> int:
    statement = (
        update(iscp_counters)
        .where(iscp_counters.c.name == counter)
        .values(value=iscp_counters.c.value + 1)
        .returning(iscp_counters.c.value)
    )
    return connection.execute(statement).scalar_one()


def _engine(url_text: str) -> Engine:
    try:
        url = make_url(url_text)
        if url.get_backend_name() == "sqlite":
            return _sqlite_engine(url)
        if url.get_backend_name() == "postgresql":
            return _postgresql_engine(url)
    except (ArgumentError, ValueError):
        # Without its cause, which may quote the URL and the password in it.
        raise UsageError(
            "ISCP_LOG_URL is not a database URL",
            cure="write sqlite:////path/to/iscp.db or postgresql://user:password@host/db",
        ) from None
    raise UsageError(
        f"ISCP_LOG_URL: {url.get_backend_name()} is not supported", cure="use sqlite or postgresql"
    )


def _sqlite_engine(url: URL) -> Engine:
    if url.database and url.database != ":memory:":
        folder = Path(url.database).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LogUnavailable(
                f"the log's folder {folder} can't be made: {error.strerror}",
                cure="set ISCP_HOME or ISCP_LOG_URL to a place that can be written",
            ) from error
    engine = create_engine(url)
    event.listen(engine, "connect", _on_sqlite_connect)
    event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _postgresql_engine(url: URL) -> Engine:
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg2")
    patience = {} if "connect_timeout" in url.query else {"connect_timeout": _CONNECT_TIMEOUT_S}
    try:
        engine = create_engine(
            url,
            pool_pre_ping=True,
            pool_size=5,
            # Not left to the server's default: a stricter level fails writers that had to wait.
            isolation_level="READ COMMITTED",
            connect_args=patience,
        )
    except ModuleNotFoundError as error:
        raise UsageError(
            "ISCP_LOG_URL names PostgreSQL and its driver is not installed",
            cure="`pip install 'iscp_dagster[postgres]'`",
        ) from error
    event.listen(engine, "connect", _on_postgresql_connect)
    return engine


def _on_sqlite_connect(connection: sqlite3.Connection, _record: object) -> None:
    # The driver's own transaction handling would begin late and lazily; ours begins at `begin`.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
    _use_wal(connection)
    # A power cut must not forget a registration: its generation would be handed out again.
    connection.execute("PRAGMA synchronous=FULL")


def _use_wal(connection: sqlite3.Connection) -> None:
    # The first switch of a new file to WAL gives up at once when another process does the same,
    # whatever the busy timeout says.
    deadline = time.monotonic() + _BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _on_postgresql_connect(connection: Any, _record: object) -> None:
    # Writers wait for each other, but not for ever, and the server ends a transaction that stalls.
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {_BUSY_TIMEOUT_MS}")
        cursor.execute(f"SET idle_in_transaction_session_timeout = {_STALLED_TIMEOUT_MS}")
    connection.commit()


def _on_sqlite_begin(connection: Connection) -> None:
    # A reader that turns writer in the middle of a transaction can't wait for the lock: it fails.
    # Writers therefore take it at the start.
    writes = connection.get_execution_options().get("iscp_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def _translated(engine: Engine) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if not _is_away(error):
            raise
        raise _unavailable(engine, str(error.orig)) from error
    except PoolTimeoutError as error:
        raise _unavailable(engine, "all connections are in use") from error


def _is_away(error: DBAPIError) -> bool:
    if isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated:
        return True
    # No statement: the connection itself failed. A bare DatabaseError: SQLite's damaged file.
    return error.statement is None or type(error) is DatabaseError


def _unavailable(engine: Engine, reason: str) -> LogUnavailable:
    # The query part of a URL may hold secrets too.
    where = engine.url.set(query={}).render_as_string(hide_password=True)
    return LogUnavailable(
        f"the log at {where} does not answer: {' '.join(reason.split())}",
        cure="check ISCP_LOG_URL and that the database is up",
    )

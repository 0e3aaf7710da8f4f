"""A consumer that keeps some columns of a table in a SQLite file, for an application to read.

Rows and watermark are written in one transaction: whoever opens the file sees the table as it was
at the watermark, never something in between.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from iscp_dagster.consumers.base import (
    Consumer,
    ConsumerResult,
    SourceFacts,
    check_options,
    find_column,
    resolve_columns,
)
from iscp_dagster.errors import IndexBehindWindow, SourceColumnChanged, UsageError
from iscp_dagster.rules.model import TS, Table, Window
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.spark.sql import columns

if TYPE_CHECKING:
    from pyspark.sql import Row

    from iscp_dagster.sources.changes import Changes

SCHEMA = """
create table if not exists entries (key text primary key, entry text not null);
create table if not exists standing (one integer primary key check (one = 1), watermark text);
insert or ignore into standing values (1, '0');
"""


class SqliteCopy(Consumer):
    """The key of each row and the columns of the spec, as JSON."""

    type = "sqlite_copy"
    kinds = frozenset({"sqlite"})

    # What registration asks, without Spark and without an index.

    @classmethod
    def check_spec(cls, spec: JobSpec, facts: SourceFacts) -> None:
        check_options(spec, ())
        if not spec.columns:
            raise UsageError("columns: sqlite_copy needs some", cure="write --columns a,b")
        resolve_columns("columns", spec.columns, facts)

    @classmethod
    def source_columns(
        cls, spec: JobSpec, pk: Sequence[str], facts: SourceFacts
    ) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*pk, *spec.columns)))

    # What an iteration does.

    def prepare(self, spec: JobSpec, table: Table, facts: SourceFacts) -> None:
        for name in spec.columns:
            if find_column(facts, name) is None:
                raise SourceColumnChanged(f"{table.key} has no column {name!r} any more")
        self._pk, self._kept = table.pk, spec.columns
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._transaction() as database:
            for statement in SCHEMA.strip().split(";\n"):
                database.execute(statement)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._pk, *self._kept)))

    def apply(self, changes: Changes, window: Window) -> ConsumerResult:
        with self._transaction() as database:
            # Asked within the transaction: a late run of the same window finds it applied.
            stands_at = _watermark(database)
            if stands_at.version >= window.end.version:
                return ConsumerResult(stands_at, no_op=True)
            if changes.kind == "snapshot":
                database.execute("delete from entries")
            elif stands_at != window.start:
                raise IndexBehindWindow(f"{self.place.key} stands at {stands_at}, not {window}")
            before = database.total_changes
            gone = changes.deletes.select(*columns(self._pk)).toLocalIterator()
            database.executemany(
                "delete from entries where key = ?", ((self._key(row),) for row in gone)
            )
            deleted = database.total_changes - before
            there = changes.upserts.select(*columns(self.columns)).toLocalIterator()
            database.executemany(
                "insert or replace into entries values (?, ?)",
                ((self._key(row), self._entry(row)) for row in there),
            )
            upserted = database.total_changes - before - deleted
            database.execute("update standing set watermark = ?", (str(window.end),))
            (count,) = database.execute("select count(*) from entries").fetchone()
        return ConsumerResult(window.end, upserted, deleted, row_count=count)

    def watermark(self) -> TS:
        if not self._path.exists():
            return TS.zero()
        with self._transaction() as database:
            return _watermark(database)

    def drop(self) -> None:
        shutil.rmtree(self._path.parent, ignore_errors=True)

    @property
    def _path(self) -> Path:
        # The place names the generation: an old one can't reach a new one's file.
        return Path(self.place.uri) / "entries.db"

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self._path, isolation_level=None, timeout=60)
        try:
            database.execute("begin immediate")
            yield database
            database.execute("commit")
        finally:
            # Without a commit, closing takes everything back.
            database.close()

    def _key(self, row: Row) -> str:
        return json.dumps([row[name] for name in self._pk], default=str)

    def _entry(self, row: Row) -> str:
        return json.dumps({name: row[name] for name in self._kept}, default=str)


def _watermark(database: sqlite3.Connection) -> TS:
    (text,) = database.execute("select watermark from standing").fetchone()
    return TS.parse(text)

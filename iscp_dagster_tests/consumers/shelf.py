"""A table of books for the tests of full-text and vector indexes, changed through delta-rs.

It has what such indexes stumble over: a composite key with a timestamp and a decimal, NULL and
empty texts, several scripts, quotes and JSON in texts, and vectors that don't fit.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from iscp_dagster.consumers.base import ConsumerResult, IndexPlace
from iscp_dagster.consumers.lance_base import LanceConsumer
from iscp_dagster.rules.model import TS, Table, TableKey, Window
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.sources.changes import Changes, retrieve_or_snapshot
from iscp_dagster.sources.facts import read_facts
from iscp_dagster.stores.lance_index import LanceIndex
from iscp_dagster.stores.lance_search import LanceReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(8, 2)),
        ("Title", pa.string()),
        ("body", pa.string()),
        ("shelf", pa.string()),
        ("stock", pa.int32()),
        ("vec", pa.list_(pa.float32())),
    ]
)
WORDS = "amber basil cedar dune ember fjord grove heron iris jade 北京 東京 ไทย straße".split()  # noqa: SIM905


def ts(version: int) -> TS:
    """The point in history of a version."""
    return TS.zero() if version < 0 else TS(version, START + timedelta(minutes=version))


@dataclass
class Shelf:
    """A table that tests write to."""

    uri: str
    rng: random.Random = field(default_factory=lambda: random.Random(3))
    next_id: int = 0

    @staticmethod
    def create(path: Path, rows: int | Sequence[Mapping[str, Any]] = 40, seed: int = 3) -> Shelf:
        """Make a table of random rows, or of given ones."""
        shelf = Shelf(str(path), random.Random(seed))
        first = [shelf.row() for _ in range(rows)] if isinstance(rows, int) else rows
        shelf._write(first, configuration={"delta.enableChangeDataFeed": "true"})
        return shelf

    @property
    def table(self) -> Table:
        """The table as the log would know it."""
        return Table(
            TableKey("sys", "books", "shelf"), 1, self.uri, ("id", "at", "price"), "any", START
        )

    @property
    def version(self) -> int:
        """The newest version."""
        return DeltaTable(self.uri).version()

    def rows(self, version: int | None = None) -> list[dict[str, Any]]:
        """The table's rows at a version."""
        return DeltaTable(self.uri, version=version).to_pyarrow_table().to_pylist()

    def row(self, **given: Any) -> dict[str, Any]:
        """A new row: random where nothing is given."""
        self.next_id += 1
        rng = self.rng
        row = {
            "id": self.next_id,
            "at": START + timedelta(microseconds=self.next_id),
            "price": Decimal(rng.randrange(10_000)) / 100,
            "Title": rng.choice([None, "", self._text(3), 'it\'s "so" {"a": 1} \\ \n']),
            "body": rng.choice([None, "", self._text(8), self._text(8)]),
            "shelf": rng.choice(["a", "b", None]),
            "stock": rng.randrange(9),
            "vec": rng.choice([None, self._vector(4), self._vector(4), self._vector(4)]),
        }
        return {**row, **given}

    def add(self, *rows: Mapping[str, Any]) -> None:
        """Append rows."""
        self._write(rows)

    def update(self, changes: Mapping[str, str], where: str) -> None:
        """Update rows, columns given as SQL expressions."""
        DeltaTable(self.uri).update(updates=dict(changes), predicate=where)

    def delete(self, where: str) -> None:
        """Delete rows."""
        DeltaTable(self.uri).delete(where)

    def churn(self) -> None:
        """One random commit."""
        rest = f"id % 5 = {self.rng.randrange(5)}"
        match self.rng.randrange(7):
            case 0:
                self.add(*(self.row() for _ in range(self.rng.randint(1, 6))))
            case 1:
                self.delete(f"{rest} and id % 2 = 0")
            case 2:
                self.update({"body": f"'{self._text(5)}'"}, rest)
            case 3:
                self.update({"stock": "stock + 1"}, rest)
            case 4:
                self.update({"body": "NULL", "vec": "NULL"}, f"{rest} and id % 3 = 0")
            case 5:
                self.next_id += 1000
                self.update({"id": "id + 1000"}, f"{rest} and id % 3 = 1")
            case 6:
                self.update({"Title": "''", "shelf": "'b'"}, rest)

    def _write(self, rows: Sequence[Mapping[str, Any]], **options: Any) -> None:
        data = pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMA)
        write_deltalake(self.uri, data, mode="append", **options)

    def _text(self, words: int) -> str:
        return " ".join(self.rng.choices(WORDS, k=self.rng.randint(1, words)))

    def _vector(self, dimension: int) -> list[float]:
        return [self.rng.uniform(-1, 1) for _ in range(dimension)]


@dataclass
class Keeper:
    """One index on a shelf, and what an iteration does with it."""

    shelf: Shelf
    consumer: LanceConsumer
    spec: JobSpec
    spark: SparkSession

    @staticmethod
    def open(
        spark: SparkSession,
        shelf: Shelf,
        kind: type[LanceConsumer],
        place: Path,
        columns: Sequence[str],
        job_id: int = 1,
        **options: str,
    ) -> Keeper:
        """Prepare an index."""
        spec = JobSpec(type=kind.type, columns=tuple(columns), options=options)
        at = IndexPlace(shelf.table.key.job("j"), job_id, str(place))
        keeper = Keeper(shelf, kind(at, spark), spec, spark)
        keeper.prepare()
        return keeper

    def prepare(self) -> None:
        """Do what an iteration does before it reads."""
        self.consumer.prepare(self.spec, self.shelf.table, read_facts(self.shelf.uri))

    def window(self, end: int | None = None) -> Window:
        """From where the index stands to a version; the newest by default."""
        to = self.shelf.version if end is None else end
        return Window(self.consumer.watermark(), ts(to))

    def changes(self, window: Window) -> AbstractContextManager[Changes]:
        """Retrieve a window's changes."""
        return retrieve_or_snapshot(
            self.spark, self.shelf.table, window, sorted(self.consumer.columns)
        )

    def sync(self, end: int | None = None) -> ConsumerResult:
        """Bring the index up to a version."""
        window = self.window(end)
        with self.changes(window) as changes:
            return self.consumer.apply(changes, window)

    @property
    def reader(self) -> LanceReader:
        """The index as it is now."""
        return LanceIndex.open(self.consumer.place.uri)


def same_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key of a row of the table or of an index."""
    return row["id"], row["at"], row["price"]

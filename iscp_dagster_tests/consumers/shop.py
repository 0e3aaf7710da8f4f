"""A source table for tests, changed through delta-rs: a commit costs milliseconds there.

The table has what indexes stumble over: a composite key, NULL groups, decimals, timestamps, floats
and quotes in text.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from iscp_dagster.consumers.base import Consumer, ConsumerResult
from iscp_dagster.rules.model import TS, Table, TableKey, Window
from iscp_dagster.sources.changes import Changes

SCHEMA = pa.schema(
    [
        ("region", pa.string()),
        ("id", pa.int64()),
        ("section", pa.string()),
        ("grade", pa.int32()),
        ("price", pa.decimal128(12, 2)),
        ("size", pa.int64()),
        ("ratio", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("note", pa.string()),
    ]
)
SECTIONS = ("net", "it's", "", None, 'say "hi"', "ünï")


def commit_time(version: int) -> datetime:
    """A time for each version; versions order, times only label."""
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=version)


def ts(version: int) -> TS:
    """The point in history of a version."""
    return TS(version, commit_time(version))


@dataclass
class Shop:
    """A table that tests write to; `key` picks rows by composite key."""

    uri: str
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    pk: tuple[str, ...] = ("region", "id")
    next_id: int = 0

    @staticmethod
    def create(path: Path, rows: int = 40, seed: int = 7) -> Shop:
        """Make a table of so many rows, its change feed on."""
        shop = Shop(str(path), random.Random(seed))
        write_deltalake(
            shop.uri,
            shop.rows(rows),
            configuration={"delta.enableChangeDataFeed": "true"},
        )
        return shop

    @property
    def table(self) -> Table:
        """The table as the log would know it."""
        key = TableKey("sys", "shop", "items")
        return Table(key, 1, self.uri, self.pk, "any", commit_time(0))

    @property
    def version(self) -> int:
        """The newest version."""
        return DeltaTable(self.uri).version()

    @property
    def head(self) -> TS:
        """The newest point in history."""
        return ts(self.version)

    def window(self, start: TS | int, end: int | None = None) -> Window:
        """The window after `start` (-1: from the beginning) up to `end`, or to the newest."""
        first = start if isinstance(start, TS) else (TS.zero() if start < 0 else ts(start))
        return Window(first, self.head if end is None else ts(end))

    def rows(self, count: int) -> pa.Table:
        """So many new random rows."""
        return pa.Table.from_pylist([self._row() for _ in range(count)], schema=SCHEMA)

    def insert(self, count: int) -> None:
        """Append new rows."""
        write_deltalake(self.uri, self.rows(count), mode="append")

    def add(self, row: Mapping[str, Any]) -> None:
        """Append one given row."""
        rows = pa.Table.from_pylist([dict(row)], schema=SCHEMA)
        write_deltalake(self.uri, rows, mode="append")

    def update(self, changes: Mapping[str, str], where: str) -> None:
        """Update rows, columns given as SQL expressions."""
        DeltaTable(self.uri).update(updates=dict(changes), predicate=where)

    def delete(self, where: str) -> None:
        """Delete rows."""
        DeltaTable(self.uri).delete(where)

    def churn(self) -> None:
        """One random commit: rows come, go, change, move between groups or get another key."""
        rest, step = self.rng.randrange(5), self.rng.randrange(8)
        some = f"id % 5 = {rest}"
        match step:
            case 0:
                self.insert(self.rng.randint(1, 6))
            case 1:
                self.delete(f"{some} and id % 2 = 0")
            case 2:
                self.update({"price": "price + 1.25", "size": "size - 3"}, some)
            case 3:
                section = self.rng.choice(["'net'", "NULL", "'it''s'", "''"])
                self.update({"section": section}, some)
            case 4:
                self.next_id += 1000
                self.update({"id": "id + 1000"}, f"{some} and id % 3 = 0")
            case 5:
                self.update({"note": "'only the note'"}, some)
            case 6:
                self.update({"ratio": "ratio * 1.1", "grade": "NULL"}, some)
            case 7:
                self.update({"price": "NULL", "at": "NULL"}, f"{some} and id % 4 = 1")

    def _row(self) -> dict[str, Any]:
        self.next_id += 1
        rng = self.rng
        return {
            "region": rng.choice(["eu", "u's"]),
            "id": self.next_id,
            "section": rng.choice(SECTIONS),
            "grade": rng.choice([None, 1, 2, 3]),
            "price": rng.choice([None, Decimal(rng.randrange(10_000)) / 100]),
            "size": rng.randrange(1000),
            "ratio": rng.choice([None, rng.random() * 10]),
            "at": commit_time(rng.randrange(10_000)),
            "note": rng.choice([None, "", "plain", 'it\'s "quoted" \\ {json}']),
        }


def side_by_side(
    consumers: Mapping[str, Consumer], changes: Changes, window: Window
) -> dict[str, ConsumerResult]:
    """Apply one window to all indexes at once, as an iteration does."""
    with ThreadPoolExecutor(len(consumers)) as pool:
        running = {name: pool.submit(c.apply, changes, window) for name, c in consumers.items()}
    return {name: future.result() for name, future in running.items()}


def comparable(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows in an order of their own, floats rounded: sums of floats depend on their order."""

    def plain(value: Any) -> Any:
        return round(value, 9) if isinstance(value, float) else value

    return sorted((tuple(plain(v) for v in row) for row in rows), key=repr)

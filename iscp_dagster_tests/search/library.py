"""A home with one table and one index of each kind, built once and copied for each test.

The table has what searches stumble over: a composite key, NULLs, quotes, decimals, timestamps, and
columns with the names that hits use themselves.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp_dagster import api
from iscp_dagster.consumers.base import Consumer, IndexPlace
from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import TS, Job, Stage, Table, TableKey, Window
from iscp_dagster.settings import Settings
from iscp_dagster.sources.changes import retrieve_or_snapshot
from iscp_dagster.sources.delta_log import open_log
from iscp_dagster.sources.facts import read_facts
from iscp_dagster.stores.paths import index_uri
from iscp_dagster_tests.conftest import settings_in
from iscp_dagster_tests.joblog.databases import execute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("region", pa.string()),
        ("id", pa.int64()),
        ("Title", pa.string()),
        ("section", pa.string()),
        ("size", pa.int32()),
        ("price", pa.decimal128(8, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("score", pa.float64()),
        ("key", pa.string()),
        ("vec", pa.list_(pa.float32())),
    ]
)
TITLES = (
    "a fast car",
    "the quick red automobile",
    "bread and butter",
    "it's a \"red\" car, isn't it",
    None,
    "stars and planets",
    "red red wine",
    "",
)
SECTIONS = ("editors", "it's", None, "text editors")
SPECS: Mapping[str, Mapping[str, Any]] = {
    "words": {
        "type": "fulltext",
        "columns": ["Title"],
        "options": {"include": "section,score,key", "positions": "true"},
    },
    "near": {"type": "vector", "columns": ["vec"], "options": {"include": "section"}},
    "like": {
        "type": "vector",
        "columns": ["Title"],
        "options": {
            "embedder": "wordllama",
            "metric": "cosine",
            "include": "Title,size",
            "where": "id <> 22",
        },
    },
    "look": {
        "type": "lookup",
        "options": {"by": "section"},
        "columns": ["Title", "size", "price", "at", "score", "key"],
    },
    "sums": {
        "type": "aggregate",
        "options": {
            "group_by": "section",
            "measures": "count,sum:size,min:price,max:price,avg:size,avg:price,count:Title",
            "where": "id <> 23",
        },
    },
}


def item(number: int, **given: Any) -> dict[str, Any]:
    """A row of the table."""
    row = {
        "region": "eu" if number % 3 else "us",
        "id": number,
        "Title": TITLES[number % len(TITLES)],
        "section": SECTIONS[number % len(SECTIONS)],
        "size": number % 7,
        "price": Decimal(number * 37 % 1000) / 100,
        "at": START + timedelta(days=number),
        "score": number / 2,
        "key": f"k{number}",
        "vec": None if number % 5 == 4 else [number / 10, 1.0, -number / 20],
    }
    return {**row, **given}


@dataclass(frozen=True)
class Library:
    """A home and its table `shop.items`."""

    folder: Path

    @property
    def settings(self) -> Settings:
        return settings_in(self.folder / "home")

    @property
    def source(self) -> str:
        return str(self.folder / "items")

    def open_log(self) -> JobLog:
        return JobLog.open(self.settings)

    def rows(self) -> list[dict[str, Any]]:
        """The table's rows as they are now."""
        return DeltaTable(self.source).to_pyarrow_table().to_pylist()

    def add(self, *rows: Mapping[str, Any]) -> None:
        """Append rows to the table."""
        data = pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMA)
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(self.source, data, mode="append", configuration=feed)

    def update(self, changes: Mapping[str, str], where: str) -> None:
        """Update rows, columns given as SQL expressions."""
        DeltaTable(self.source).update(updates=dict(changes), predicate=where)

    def delete(self, where: str) -> None:
        """Delete rows."""
        DeltaTable(self.source).delete(where)

    @property
    def head(self) -> TS:
        """The table's newest point in history."""
        version = DeltaTable(self.source).version()
        return open_log(self.source, {}).read(version, 1, None)[0].commit.ts

    def register(self, name: str, spec: Mapping[str, Any]) -> None:
        with self.open_log() as log:
            assert api.register_job("shop.items", name, spec, log=log)

    def set(self, name: str, **changes: Any) -> None:
        """Change a job's row in the log."""
        with self.open_log() as log:
            job = api.get_job("shop.items", name, log=log)
            log.jobs.compare_and_set(job, **changes)

    def sync(self, spark: SparkSession, *names: str) -> None:
        """Bring every index, or those named, up to date in one scan, as an iteration does."""
        with self.open_log() as log:
            jobs = [job for job in api.get_jobs(log=log) if isinstance(job, Job)]
            jobs = [job for job in jobs if not names or job.key.name in names]
            table = log.tables.get(TableKey("sys", "shop", "items"))
            consumers = [self._prepared(job, table, spark) for job in jobs]
            window = Window(consumers[0].watermark(), self.head)
            wanted = sorted({name for consumer in consumers for name in consumer.columns})
            readers = len(consumers)
            with retrieve_or_snapshot(spark, table, window, wanted, readers=readers) as changes:
                for job, consumer in zip(jobs, consumers, strict=True):
                    consumer.apply(changes, window)
                    log.jobs.compare_and_set(job, watermark=window.end, stage=Stage.TAIL)

    def copy(self, folder: Path) -> Library:
        """Return a library of one's own, to change."""
        shutil.copytree(self.folder, folder)
        copy = Library(folder)
        execute(copy.settings.log_url, "update iscp_tables set uri = :uri", uri=copy.source)
        return copy

    def _prepared(self, job: Job, table: Table, spark: SparkSession) -> Consumer:
        uri = index_uri(self.settings.warehouse, job.key, job.job_id)
        kind = get_consumer_class(job.spec.type)
        consumer = kind(IndexPlace(job.key, job.job_id, uri), spark)
        consumer.prepare(job.spec, table, read_facts(table.uri))
        return consumer


@cache
def built(spark: SparkSession, folder: Path) -> Library:
    """The library that copies are made of; built once in a process."""
    library = Library(folder)
    library.add(*(item(number) for number in range(24)))
    with library.open_log() as log:
        pk = ["region", "id"]
        assert api.add_table("shop.items", uri=library.source, pk=pk, log=log)
    for name, spec in SPECS.items():
        library.register(name, spec)
    library.sync(spark)
    return library


@contextmanager
def at_home(library: Library) -> Iterator[Library]:
    """Let this process, and those it starts, run with a library's home."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ISCP_LOG_URL", "ISCP_WAREHOUSE", "SPARK_REMOTE"):
            patch.delenv(name, raising=False)
        patch.setenv("ISCP_HOME", str(library.settings.home))
        yield library


@pytest.fixture
def library(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> Iterator[Library]:
    """A library of this test's own, all of its indexes up to date."""
    original = built(spark, tmp_path_factory.getbasetemp() / "library")
    with at_home(original.copy(tmp_path / "library")) as copy:
        yield copy


def ids(hits: Sequence[Mapping[str, Any]]) -> list[int]:
    """Which rows were found, in their order."""
    return [hit["key"]["id"] for hit in hits]

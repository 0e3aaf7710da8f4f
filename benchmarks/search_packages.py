"""The packages of two Debian releases: a table at the older one, its indexes, and the difference.

The *batch* is what turns the older release into the newer: *upserts* (new and updated packages) and
packages that are gone. Of the updated ones, some got another *text*, the description that the
indexes are made from; most got another version only.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "debian.packages"
TEXT = "description"
OTHERS = ("version", "section", "maintainer", "installed_kb")
SPECS: Mapping[str, Mapping[str, Any]] = {
    "rows": {"type": "fulltext", "columns": [TEXT], "options": {"include": ",".join(OTHERS)}},
    "texts": {"type": "fulltext", "columns": [TEXT]},
    "vectors": {
        "type": "vector",
        "columns": [TEXT],
        "options": {"embedder": "wordllama", "metric": "cosine"},
    },
    "lookup": {"type": "lookup", "columns": ["version"], "options": {"by": "section"}},
    "groups": {
        "type": "aggregate",
        "options": {"group_by": "section", "measures": "count,sum:installed_kb,max:installed_kb"},
    },
}
"""`rows` stores every column, so that every row of the batch is written; `texts` and `vectors` only
what they search by."""
_TENTH = 10


@dataclass(frozen=True)
class Releases:
    """Both releases."""

    old: pa.Table
    new: pa.Table

    @staticmethod
    def read(folder: Path, *, quick: bool) -> Releases:
        """Read both from a folder; a tenth of the packages when it shall be quick."""
        tables = [pq.read_table(folder / f"debian-{one}.parquet") for one in ("bookworm", "trixie")]
        if quick:
            tables = [table.filter(_tenth(table)) for table in tables]
        return Releases(*tables)

    @cached_property
    def before(self) -> dict[str, dict[str, Any]]:
        """The packages of the older release, by name."""
        return {row["package"]: row for row in self.old.to_pylist()}

    @cached_property
    def upserts(self) -> list[dict[str, Any]]:
        """The packages that are new or updated."""
        return [row for row in self.new.to_pylist() if self.before.get(row["package"]) != row]

    @cached_property
    def updated(self) -> list[dict[str, Any]]:
        """Those of them that were there before."""
        return [row for row in self.upserts if row["package"] in self.before]

    @cached_property
    def rewritten(self) -> list[dict[str, Any]]:
        """The upserts with a text that is new."""
        return [
            row
            for row in self.upserts
            if self.before.get(row["package"], {}).get(TEXT) != row[TEXT]
        ]

    @cached_property
    def gone(self) -> list[str]:
        """The packages that the newer release has no more."""
        return sorted(self.before.keys() - set(self.new["package"].to_pylist()))

    def table(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Return packages as a table."""
        return pa.Table.from_pylist([dict(row) for row in rows], schema=self.new.schema)

    def words(self, count: int, each: int, seed: int = 7) -> list[str]:
        """Make up queries of words that occur together in a description."""
        rng = random.Random(seed)
        texts = self.old[TEXT].to_pylist()
        found: list[str] = []
        while len(found) < count:
            words = [w for w in rng.choice(texts).split() if w.isalpha() and len(w) > 2]
            if len(words) >= each:
                found.append(" ".join(rng.sample(words, each)))
        return found


def _tenth(table: pa.Table) -> pa.Array:
    names = table["package"].to_pylist()
    return pa.array([zlib.crc32(name.encode()) % _TENTH == 0 for name in names])


@dataclass(frozen=True)
class Home:
    """A home with the table and its indexes; this process runs with it."""

    folder: Path
    spark: SparkSession

    @staticmethod
    def make(folder: Path, releases: Releases) -> Home:
        """Make the table at the older release, and build its indexes."""
        from iscp_dagster.spark.session import get_spark

        for name in ("ISCP_LOG_URL", "ISCP_WAREHOUSE"):
            os.environ.pop(name, None)
        os.environ["ISCP_HOME"] = str(folder / "home")
        home = Home(folder, get_spark(Settings.from_env(), "iscp-search-benchmark"))
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(home.uri, releases.old, configuration=feed)
        with home.open_log() as log:
            api.add_table(NAME, uri=home.uri, pk=["package"], log=log)
            for name, spec in SPECS.items():
                api.register_job(NAME, name, spec, log=log)
            for job in home.jobs(log).values():
                consumer = home.consumer(job, home.index(job))
                window = Window(consumer.watermark(), home.head)
                with retrieve_or_snapshot(
                    home.spark, home.table(log), window, consumer.columns
                ) as changes:
                    consumer.apply(changes, window)
                log.jobs.compare_and_set(job, watermark=window.end, stage=Stage.TAIL)
        return home

    @property
    def uri(self) -> str:
        """Where the table is."""
        return str(self.folder / "packages")

    @property
    def head(self) -> TS:
        """The table's newest point in history."""
        version = DeltaTable(self.uri).version()
        return open_log(self.uri, {}).read(version, 1, None)[0].commit.ts

    def open_log(self) -> JobLog:
        """Open the log."""
        return JobLog.open(Settings.from_env())

    def jobs(self, log: JobLog) -> dict[str, Job]:
        """Return the jobs by name."""
        return {job.key.name: job for job in api.get_jobs(log=log) if isinstance(job, Job)}

    def table(self, log: JobLog) -> Table:
        """Return the table as the log knows it."""
        return log.tables.get(TableKey.parse(NAME, "sys"))

    def index(self, job: Job) -> str:
        """Return where a job's index is."""
        return index_uri(Settings.from_env().warehouse, job.key, job.job_id)

    def consumer(self, job: Job, uri: str) -> Consumer:
        """Return what keeps an index, which may be a copy at another place."""
        consumer = get_consumer_class(job.spec.type)(
            IndexPlace(job.key, job.job_id, uri), self.spark
        )
        with self.open_log() as log:
            consumer.prepare(job.spec, self.table(log), read_facts(self.uri))
        return consumer

    def merge(self, rows: pa.Table) -> None:
        """Commit upserts."""
        self._merge(rows).when_not_matched_insert_all().execute()

    def become(self, release: pa.Table) -> None:
        """Commit all that a release is different in."""
        merge = self._merge(release).when_not_matched_insert_all()
        merge.when_not_matched_by_source_delete().execute()

    def _merge(self, rows: pa.Table) -> Any:
        differs = " or ".join(
            f"(was.{name} is distinct from now.{name})" for name in rows.column_names
        )
        merge = DeltaTable(self.uri).merge(
            rows, "was.package = now.package", source_alias="now", target_alias="was"
        )
        return merge.when_matched_update_all(predicate=differs)

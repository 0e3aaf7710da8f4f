"""Eight indexes in one shared iteration, against eight hand-written streaming pipelines.

A *pipeline* is what one writes without this project: Structured Streaming over the change feed with
`availableNow`, and a `foreachBatch` that reduces the batch to one row per key, persists it and
MERGEs it into a Delta table. The eight run side by side, once in a session with Spark's and Delta's
defaults, and once, to tell what is owed to settings, in a *tuned* one with those that the iteration
has. The table goes from one Debian release to the next and back, once a round, and all sides bring
their eight tables there; what they hold is compared at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.iteration_house import House, Ran, Timing, first_read, timed
from iscp_dagster import api
from iscp_dagster.stores.paths import index_uri

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLE = "packages"
REST = ("version", "section", "maintainer", "installed_kb", "description")


@dataclass(frozen=True)
class Copy:
    """One index: which rows, sorted by what."""

    where: str | None = None
    by: str | None = None

    @property
    def spec(self) -> dict[str, Any]:
        """The same as a job's spec."""
        options = {k: v for k, v in (("where", self.where), ("by", self.by)) if v is not None}
        kind = "mirror" if self.by is None else "lookup"
        return {"type": kind, "columns": list(REST), "options": options}


COPIES = {
    "all": Copy(),
    "large": Copy(where="installed_kb > 500"),
    "libraries": Copy(where="section = 'libs'"),
    "described": Copy(where="description like '%data%'"),
    "by_section": Copy(by="section"),
    "by_maintainer": Copy(by="maintainer"),
    "by_size": Copy(by="installed_kb"),
    "by_version": Copy(by="version"),
}
"""All with all columns, so that each pipeline has to read what the iteration reads once."""


@dataclass(frozen=True)
class Round:
    """One change of release, brought into eight tables by every side."""

    changes: int
    ours: Timing
    theirs: Timing
    tuned: Timing
    """Theirs, with our settings."""
    our_bytes: int
    their_bytes: int


def measure_shared(house: House, data: Path, rounds: int) -> list[Round]:
    """Run the rounds; raises when the sides differ."""
    spark = house.spark
    releases = [
        spark.read.parquet(str(data / f"debian-{name}.parquet")).dropDuplicates(["package"]).cache()
        for name in ("bookworm", "trixie")
    ]
    writer = releases[0].write.format("delta").option("delta.enableChangeDataFeed", "true")
    writer.save(house.source(TABLE))
    house.add(TABLE, "package", {name: copy.spec for name, copy in COPIES.items()})
    house.catch_up(TABLE, list(COPIES))
    plain = [Pipeline(house, _plain(spark), name, "plain") for name in COPIES]
    tuned = [Pipeline(house, spark, name, "tuned") for name in COPIES]
    for pipeline in (*plain, *tuned):
        pipeline.first_load(releases[0])
    done = []
    for number in range(rounds):
        _become(house, releases[(number + 1) % 2])
        ours = house.catch_up(TABLE, list(COPIES))
        theirs, their_bytes = _run(plain)
        with_settings, _ = _run(tuned)
        net = max(_net(ours, name) for name in COPIES)
        done.append(Round(net, ours.timing, theirs, with_settings, ours.source_bytes, their_bytes))
    _compare(house, (*plain, *tuned))
    return done


class Pipeline:
    """A streaming query with its checkpoint and its table."""

    def __init__(self, house: House, session: SparkSession, name: str, side: str) -> None:
        self.name = name
        self.copy = COPIES[name]
        self.house = house
        self.session = session
        self.side = side
        self.target = str(house.folder / side / name)
        self.bytes = 0
        """What it read of the source so far."""

    @property
    def names(self) -> list[str]:
        """The columns of its table."""
        return ["package", *REST]

    def first_load(self, rows: DataFrame) -> None:
        """Fill the table, and let the query begin behind the first commit."""
        kept = rows if self.copy.where is None else rows.where(self.copy.where)
        kept.select(*self.names).write.format("delta").save(self.target)

    def start(self) -> Any:
        """Start the query over everything that is new."""
        feed = (
            self.session.readStream.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", 1)
            .load(self.house.source(TABLE))
        )
        checkpoint = str(self.house.folder / "checkpoints" / self.side / self.name)
        writer = feed.writeStream.foreachBatch(self._apply).trigger(availableNow=True)
        return writer.option("checkpointLocation", checkpoint).start()

    def _apply(self, batch: DataFrame, number: int) -> None:
        from delta.tables import DeltaTable as Target
        from pyspark.sql import Window
        from pyspark.sql import functions as fn

        spark = batch.sparkSession
        newest = Window.partitionBy("package").orderBy(
            fn.desc("_commit_version"), fn.desc(fn.col("_change_type") != "delete")
        )
        rows = (
            batch.where("_change_type <> 'update_preimage'")
            .withColumn("nth", fn.row_number().over(newest))
            .where("nth = 1")
            .withColumn("gone", _gone(self.copy.where))
            .select(*self.names, "gone")
            .persist()
        )
        context: Any = spark.sparkContext
        tag = f"{self.side}-{self.name}-{number}"
        context.addJobTag(tag)
        rows.count()
        context.removeJobTag(tag)
        self.bytes += first_read(spark, tag)
        values: dict[str, str | Column] = {n: f"s.`{n}`" for n in self.names}
        (
            Target.forPath(spark, self.target)
            .alias("t")
            .merge(rows.alias("s"), "t.package = s.package")
            .whenMatchedDelete("s.gone")
            .whenMatchedUpdate(set=values)
            .whenNotMatchedInsert("not s.gone", values=values)
            .execute()
        )
        rows.unpersist()


def _gone(where: str | None) -> Column:
    from pyspark.sql import functions as fn

    gone = fn.col("_change_type") == "delete"
    return gone if where is None else gone | ~fn.coalesce(fn.expr(where), fn.lit(False))


def _plain(spark: SparkSession) -> SparkSession:
    """A session with the defaults that ours changes."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "200")
    session.conf.set("spark.sql.adaptive.enabled", "true")
    session.conf.set("spark.databricks.delta.snapshotPartitions", "50")
    return session


def _run(pipelines: list[Pipeline]) -> tuple[Timing, int]:
    before = sum(pipeline.bytes for pipeline in pipelines)
    with timed() as timing:
        queries = [pipeline.start() for pipeline in pipelines]
        for query in queries:
            query.awaitTermination()
    return timing, sum(pipeline.bytes for pipeline in pipelines) - before


def _net(ran: Ran, name: str) -> int:
    results: Mapping[str, Any] = {job.key.name: job.result for job in ran.report.jobs}
    result = results[name]
    return result.rows_upserted + result.rows_deleted + result.rows_skipped


def _become(house: House, release: DataFrame) -> None:
    """Make the table a release's, as a commit that changes what differs and nothing else."""
    from delta.tables import DeltaTable as Target

    differs = " or ".join(f"not (t.`{n}` <=> s.`{n}`)" for n in REST)
    (
        Target.forPath(house.spark, house.source(TABLE))
        .alias("t")
        .merge(release.alias("s"), "t.package = s.package")
        .whenMatchedUpdateAll(differs)
        .whenNotMatchedInsertAll()
        .whenNotMatchedBySourceDelete()
        .execute()
    )


def _compare(house: House, pipelines: Sequence[Pipeline]) -> None:
    read: Callable[[str], DataFrame] = house.spark.read.format("delta").load
    for pipeline in pipelines:
        job = api.get_job(f"bench.{TABLE}", pipeline.name, log=house.log)
        ours = read(index_uri(house.settings.warehouse, job.key, job.job_id))
        theirs = read(pipeline.target).select(*ours.columns)
        if ours.exceptAll(theirs).count() or theirs.exceptAll(ours).count():
            raise AssertionError(f"{pipeline.name}: ours and the {pipeline.side} one differ")

"""Retrieve once: what one window changed, read once and shared by every consumer.

A *snapshot* is the table at the window's end; it replaces whatever an index holds. A *tail* is the
change feed of the window, reduced to its *net effect*: one row per key with the image it had at the
window's start (`before`, none for a new row) and the one it has at its end (`after`, none for a
deleted row). Within one version a deletion comes before an insertion, so a changed key is a delete
of the old key and an insert of the new one.

The result is persisted in memory, then disk, and published as a global temp view: cached data is
found by its plan, and a global temp view carries the plan to the sessions of the consumers, in one
process and over Connect.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, NoReturn

from iscp_dagster.errors import (
    HistoryLost,
    SourceColumnChanged,
    SourceTableMissing,
    WindowUnavailable,
)
from iscp_dagster.rules.model import Table, Window
from iscp_dagster.spark.sql import columns, has_condition, one_line, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

VERSION = "_ts"
"""The column that tells at which version a row changed."""

_TABLE_GONE = (
    "PATH_NOT_FOUND",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_EMPTY_DIRECTORY",
)
_FILES_GONE = ("FAILED_READ_FILE.FILE_NOT_EXIST", "DELTA_FILE_NOT_FOUND_DETAILED")
_CHANGES_GONE = (
    *_FILES_GONE,
    "DELTA_MISSING_CHANGE_DATA",
    "DELTA_CHANGE_DATA_FILE_NOT_FOUND",
    "DELTA_CHANGE_TABLE_FEED_DISABLED",
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_DATA_SCHEMA",
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE",
    "DELTA_EMPTY_DIRECTORY",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
)
# Delta raises these without an error condition.
_VERSION_GONE = "Cannot time travel Delta table to version"
_LOG_GONE = "java.io.FileNotFoundException"
_START_GONE = (
    _VERSION_GONE,
    _LOG_GONE,
    "for reading change data is invalid",
    "No reproducible commits found",
)


class ChangeKind(StrEnum):
    """What was read."""

    SNAPSHOT = "snapshot"
    TAIL = "tail"


@dataclass(frozen=True, slots=True)
class Changes:
    """One window's changes, readable from any session until the iteration releases them."""

    kind: ChangeKind
    window: Window
    table: Table
    columns: tuple[str, ...]
    """The columns that were read, the key among them, as the table spells them."""
    rows_scanned: int
    """Rows read from the table: rows of a snapshot, or entries of the change feed."""
    rows_net: int
    """Rows left for the consumers: keys that changed."""
    text_bytes: int
    """Bytes of the texts in the rows of a tail at its end; what else there is, is small."""
    spark: SparkSession
    view: str

    def seen_from(self, session: SparkSession) -> Changes:
        """Return the same changes as DataFrames of another session."""
        return replace(self, spark=session)

    @property
    def net(self) -> DataFrame:
        """One row per changed key: structs `key`, `before`, `after`; `_ts`; `once`.

        `once` tells that a single version touched the key, so that `before` and `after` are all
        that ever happened to it in the window. A snapshot has no net effect.
        """
        if self.kind is ChangeKind.SNAPSHOT:
            raise ValueError("a snapshot replaces the index: it has no net effect")
        return self._published

    @property
    def upserts(self) -> DataFrame:
        """Rows that are there at the window's end: the columns and `_ts`."""
        if self.kind is ChangeKind.SNAPSHOT:
            return self._published
        net = self.net
        return net.where(net["after"].isNotNull()).select("after.*", VERSION)

    @property
    def deletes(self) -> DataFrame:
        """Keys that are gone at the window's end, and `_ts`; none in a snapshot."""
        if self.kind is ChangeKind.SNAPSHOT:
            return self._published.select(*columns(self.table.pk), VERSION).limit(0)
        net = self.net
        return net.where(net["after"].isNull()).select("key.*", VERSION)

    @property
    def before(self) -> DataFrame | None:
        """What the changed rows were at the window's start; a snapshot has none."""
        if self.kind is ChangeKind.SNAPSHOT:
            return None
        net = self.net
        return net.where(net["before"].isNotNull()).select("before.*", VERSION)

    def table_at_end(self) -> DataFrame:
        """The whole table at the window's end, to recompute what changes alone can't tell."""
        return _table_at(self.spark, self.table, self.window.end.version)

    @property
    def _published(self) -> DataFrame:
        return self.spark.table(f"global_temp.{self.view}")


@contextmanager
def retrieve(
    spark: SparkSession,
    table: Table,
    window: Window,
    wanted: Sequence[str],
    *,
    readers: int = 1,
    snapshot: bool = False,
) -> Iterator[Changes]:
    """Read a window's changes, and release them on leaving, however that happens.

    Args:
        spark: The iteration's session.
        table: The source.
        window: From 0 reads a snapshot of its end, any other start the change feed.
        wanted: The columns that the consumers need; the key comes along in any case.
        readers: How many consumers will read; a snapshot for one is streamed, not persisted.
        snapshot: Read a snapshot even so: the index is to be built anew.

    Raises:
        HistoryLost: The change feed no longer covers the window.
        WindowUnavailable: The table can't be read at the window's end.
        SourceTableMissing: There is no Delta table any more.
        SourceColumnChanged: A wanted column is gone.
    """
    names = _spell(_open(spark, table, window), table, wanted)
    if snapshot or window.start.is_zero:
        found = _snapshot(spark, table, window, names, readers)
    else:
        found = _tail(spark, table, window, names)
    yield from _published(spark, *found)


@contextmanager
def retrieve_or_snapshot(
    spark: SparkSession,
    table: Table,
    window: Window,
    wanted: Sequence[str],
    *,
    readers: int = 1,
) -> Iterator[Changes]:
    """Do as `retrieve`, but read a snapshot of the window's end where its history is lost."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(retrieve(spark, table, window, wanted, readers=readers))
        except HistoryLost:
            found = stack.enter_context(
                retrieve(spark, table, window, wanted, readers=readers, snapshot=True)
            )
        yield found


def _published(spark: SparkSession, changes: Changes, rows: DataFrame) -> Iterator[Changes]:
    try:
        rows.createOrReplaceGlobalTempView(changes.view)
        yield changes
    finally:
        spark.catalog.dropGlobalTempView(changes.view)
        rows.unpersist()


def _open(spark: SparkSession, table: Table, window: Window) -> DataFrame:
    """The table at the window's end: proof that the end is there, and its schema."""
    try:
        found = _table_at(spark, table, window.end.version)
        _ = found.schema  # over Connect nothing is looked up before somebody asks
        return found
    except spark_errors() as error:
        _raise_known(error, table, window)


def _table_at(spark: SparkSession, table: Table, version: int) -> DataFrame:
    return spark.read.format("delta").option("versionAsOf", version).load(table.uri)


def _spell(found: DataFrame, table: Table, wanted: Sequence[str]) -> tuple[str, ...]:
    """The wanted columns and the key in the table's order and spelling."""
    needed = {name.lower() for name in (*table.pk, *wanted)}
    names = tuple(name for name in found.columns if name.lower() in needed)
    missing = needed - {name.lower() for name in names}
    for name in (*table.pk, *wanted):
        if name.lower() in missing:
            raise SourceColumnChanged(f"{table.key} has no column {name!r} any more")
    return names


def _snapshot(
    spark: SparkSession, table: Table, window: Window, names: tuple[str, ...], readers: int
) -> tuple[Changes, DataFrame]:
    from pyspark.sql import functions as fn

    whole = _table_at(spark, table, window.end.version)
    rows = whole.select(*columns(names), fn.lit(window.end.version).cast("bigint").alias(VERSION))
    try:
        # For a single reader the log's statistics tell the count without reading the rows.
        count = _persist(rows).count() if readers > 1 else whole.count()
    except spark_errors() as error:
        rows.unpersist()
        _raise_known(error, table, window)
    return _changes(ChangeKind.SNAPSHOT, window, table, names, (count, count, 0), spark), rows


def _tail(
    spark: SparkSession, table: Table, window: Window, names: tuple[str, ...]
) -> tuple[Changes, DataFrame]:
    from pyspark.sql import functions as fn

    net = None
    try:
        feed = (
            spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", window.start.version + 1)
            .option("endingVersion", window.end.version)
            .load(table.uri)
        )
        net = _persist(net_effect(feed, table.pk, names))
        sums = (fn.sum("entries"), fn.sum(_text_size(net, names)))
        totals = net.agg(fn.count("*"), *(fn.coalesce(s, fn.lit(0)) for s in sums)).collect()[0]
    except spark_errors() as error:
        if net is not None:
            net.unpersist()
        text = str(error)
        if has_condition(error, _CHANGES_GONE) or any(sign in text for sign in _START_GONE):
            raise HistoryLost(f"{table.key}: {window} is lost ({one_line(error)})") from error
        _raise_known(error, table, window)
    counts = (totals[1], totals[0], totals[2])
    return _changes(ChangeKind.TAIL, window, table, names, counts, spark), net


def net_effect(feed: DataFrame, pk: Sequence[str], names: Sequence[str]) -> DataFrame:
    """Reduce a change feed to one row per key: its first and its last image in the window.

    A row's images order by version, those it had before a change ahead of those it got: so the
    last image tells whether the row is there at the end, the first one whether it was at the start.
    """
    from pyspark.sql import functions as fn

    got = fn.col("_change_type").isin("insert", "update_postimage")
    order = fn.struct(fn.col("_commit_version").alias("version"), got.alias("got"))
    image = fn.struct(*columns(names))
    keyed = feed.groupBy(fn.struct(*columns(pk)).alias("key")).agg(
        fn.min(order).alias("first"),
        fn.max(order).alias("last"),
        fn.min_by(image, order).alias("first_image"),
        fn.max_by(image, order).alias("last_image"),
        fn.count("*").alias("entries"),
    )
    return keyed.select(
        "key",
        fn.col("last.version").cast("bigint").alias(VERSION),
        (fn.col("first.version") == fn.col("last.version")).alias("once"),
        "entries",
        fn.when(~fn.col("first.got"), fn.col("first_image")).alias("before"),
        fn.when(fn.col("last.got"), fn.col("last_image")).alias("after"),
    )


def _text_size(net: DataFrame, names: Sequence[str]) -> Column:
    """The bytes of the texts in a row's last image."""
    from pyspark.sql import functions as fn

    image: Any = net.schema["after"].dataType
    after = fn.col("after")
    sizes = [
        fn.coalesce(fn.octet_length(after.getField(name)), fn.lit(0)).cast("bigint")
        for name in names
        if image[name].dataType.typeName() in ("string", "binary")
    ]
    return reduce(add, sizes, fn.lit(0).cast("bigint"))


def _persist(rows: DataFrame) -> DataFrame:
    from pyspark import StorageLevel

    return rows.persist(StorageLevel.MEMORY_AND_DISK)


def _changes(
    kind: ChangeKind,
    window: Window,
    table: Table,
    names: tuple[str, ...],
    counts: tuple[int, int, int],
    spark: SparkSession,
) -> Changes:
    return Changes(
        kind=kind,
        window=window,
        table=table,
        columns=names,
        rows_scanned=int(counts[0]),
        rows_net=int(counts[1]),
        text_bytes=int(counts[2]),
        spark=spark,
        view=f"iscp_changes_{uuid.uuid4().hex}",
    )


def _raise_known(error: Exception, table: Table, window: Window) -> NoReturn:
    """Turn what Spark says about a missing table, version or file into our own words."""
    log_gone = _LOG_GONE in str(error) and "_delta_log" in str(error)
    if log_gone or has_condition(error, _TABLE_GONE):
        raise SourceTableMissing(f"{table.key}: {table.uri} is no Delta table any more") from error
    if has_condition(error, _FILES_GONE) or _VERSION_GONE in str(error):
        raise WindowUnavailable(
            f"{table.key} can't be read at v{window.end.version} ({one_line(error)})"
        ) from error
    raise error

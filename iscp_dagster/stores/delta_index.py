"""A Delta table as an index: a window and its watermark in one commit.

Every commit of ours carries a *transaction id* (`iscp:<job_id>`, version = the window's end) and a
*mark*: a line of JSON in the commit's user metadata with the generation, the window and what it
takes to tell the number of rows after it. The transaction id makes a replay a no-op and an older
window lose; it is part of the table's state and outlives log cleanup and VACUUM. The mark tells the
rest: the time of the watermark, the row count, and whether each window began where the one before
ended. If one did not (a late writer slipped in between another's look and its commit), the index is
*broken*: it stands at 0, and the next iteration builds it anew.

Everything that only asks goes without Spark.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iscp_dagster.errors import IndexContended
from iscp_dagster.rules.model import TS, Window
from iscp_dagster.sources.delta_log import LOG_FOLDER
from iscp_dagster.sources.storage import (
    local_path,
    open_store,
    provider_of,
    storage_options_from_env,
)
from iscp_dagster.spark.sql import (
    has_condition,
    one_line,
    quote_identifiers,
    quote_literal,
    quote_path_table,
    spark_errors,
)
from iscp_dagster.stores.delta_draft import Identity
from iscp_dagster.stores.delta_files import DeltaFiles
from iscp_dagster.stores.delta_layout import laid_out
from iscp_dagster.stores.delta_ways import (
    GONE,
    SMALL_INDEX,
    Batch,
    Way,
    choose_way,
    has_checkpoint,
    keys_predicate,
    merge_statement,
    without_keys,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
    from pyspark.sql.types import StructType

_SOURCE = "iscp_source"
_BUILD = "iscp.build"
_LOOK_BACK = 64
_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_CONFLICTS = (
    "DELTA_CONCURRENT_TRANSACTION",
    "DELTA_CONCURRENT_APPEND",
    "DELTA_CONCURRENT_DELETE_READ",
    "DELTA_CONCURRENT_DELETE_DELETE",
    "DELTA_CONCURRENT_WRITE",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
)
# Characters that parquet column names may not have unless columns are mapped.
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")

_STATS_TYPES = frozenset(
    "tinyint smallint int bigint float double date timestamp timestamp_ntz string".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an index stands."""

    version: int
    """The index's own Delta version."""
    watermark: TS
    rows: int | None = None
    """Rows in the index; None where the mark is gone."""
    broken: bool = False


@dataclass(frozen=True, slots=True)
class AppliedCounts:
    """What a window did to an index."""

    upserted: int
    deleted: int


@dataclass(frozen=True, slots=True)
class DeltaIndex:
    """One generation of a Delta index."""

    uri: str
    job_id: int

    @property
    def app_id(self) -> str:
        """The name that this generation's transactions go by."""
        return f"iscp:{self.job_id}"

    def standing(self) -> Standing | None:
        """Ask the store where the index stands; None when there is no index."""
        table = self._open()
        if table is None:
            return None
        version = table.transaction_version(self.app_id)
        if version is None:
            return Standing(table.version(), TS.zero(), 0)
        marks = self._marks(table)
        if not marks or marks[0].end.version != version:
            return Standing(table.version(), TS(version))
        broken = len(marks) > 1 and not marks[0].follows(marks[1])
        watermark = TS.zero() if broken else marks[0].end
        return Standing(table.version(), watermark, marks[0].rows, broken)

    def build(self) -> dict[str, Any] | None:
        """Return what the index was built from, as recorded when it was made."""
        table = self._open()
        text = None if table is None else table.metadata().configuration.get(_BUILD)
        return None if text is None else json.loads(text)

    def create(
        self,
        session: SparkSession,
        like: DataFrame,
        build: Mapping[str, Any],
        stats_columns: Sequence[str],
    ) -> None:
        """Make an empty index with the columns of `like`, unless somebody else just did.

        Args:
            session: A session of the caller's own.
            like: Its schema becomes the index's.
            build: What the index is built from; recorded for good.
            stats_columns: The key and the columns it is sorted by: only these get statistics.
        """
        properties = {
            _BUILD: json.dumps(build),
            "delta.enableDeletionVectors": "true",
        }
        with_stats = [name for name in stats_columns if _has_stats(like, name)]
        if with_stats:
            properties["delta.dataSkippingStatsColumns"] = quote_identifiers(with_stats)
        else:
            properties["delta.dataSkippingNumIndexedCols"] = "0"
        if any(_NEEDS_MAPPING & set(name) for name in like.columns):
            properties["delta.columnMapping.mode"] = "name"
        listed = ", ".join(
            f"{quote_literal(k)} = {quote_literal(v)}" for k, v in properties.items()
        )
        like.createOrReplaceTempView(_SOURCE)
        with _conflicts(self.uri):
            session.sql(
                f"create table if not exists {quote_path_table(self.uri)} using delta "  # noqa: S608 - all quoted
                f"tblproperties ({listed}) as select * from {_SOURCE} where false"
            )

    def replace(self, rows: DataFrame, window: Window) -> None:
        """Make `rows` the whole content, and the window's end the watermark."""
        with _conflicts(self.uri):
            self._writer(rows, window, "snapshot").mode("overwrite").save(self.uri)

    def apply(self, session: SparkSession, batch: Batch, window: Window, standing: Standing) -> Way:
        """Apply a window, in the cheapest way; returns which one it was.

        Args:
            session: A session of the caller's own.
            batch: What the window changes.
            window: Its end becomes the watermark.
            standing: Where the index stood when the batch was made.
        """
        if batch.fetched is not None and self._direct(batch, batch.fetched, window, standing):
            return Way.DIRECT
        way = choose_way(batch.changed, standing.rows)
        predicate = keys_predicate(batch) if way is Way.PATCH else None
        with _conflicts(self.uri):
            if way is Way.REWRITE:
                self._rewrite(session, batch, window, standing)
            elif predicate is not None:
                self._patch(batch, window, standing, predicate)
            else:
                way = Way.MERGE
                self._merge(session, batch, window, standing)
        return way

    def rows_at(self, session: SparkSession, standing: Standing) -> DataFrame:
        """Return the index as it stood: nobody else's commit can get in.

        A small one is read here and handed to Spark, which takes longer to find its files.
        """
        if standing.rows is not None and standing.rows <= SMALL_INDEX:
            from iscp_dagster.stores.delta_direct import read_rows

            table = self._at(standing.version)
            rows = read_rows(self.uri, table)
            if rows is not None:
                return session.createDataFrame(rows, schema=_spark_schema(table))
        reader = session.read.format("delta").option("versionAsOf", standing.version)
        return reader.load(self.uri)

    def _direct(self, batch: Batch, rows: pa.Table, window: Window, standing: Standing) -> bool:
        """Apply a batch without Spark; False, and nothing has happened, where that can't be."""
        import pyarrow as pa

        from iscp_dagster.stores.delta_direct import Change, apply_change

        table = self._at(standing.version)
        recorded = table.transaction_version(self.app_id)
        if recorded is not None and recorded >= window.end.version:
            return True  # as with Spark's commits: a replay, or a late writer of an older window
        stays = pa.array(~rows.column(GONE).to_numpy())
        change = Change(
            rows=rows.filter(stays).select(batch.names),
            keys=rows.select(list(batch.key)),
            order=batch.order,
            fine=batch.fine,
        )
        done = apply_change(
            self.uri, table, change, lambda after: self._identity(window, "direct", rows=after)
        )
        if done:
            self._checkpoint(standing.version + 1)
        return done

    def _rewrite(
        self, session: SparkSession, batch: Batch, window: Window, standing: Standing
    ) -> None:
        kept = without_keys(self.rows_at(session, standing), batch)
        rows = laid_out(
            kept.unionByName(batch.upserted),
            batch.order,
            (standing.rows or 0) + batch.upserts,
            fine=batch.fine,
        )
        self._writer(rows, window, "rewrite").mode("overwrite").save(self.uri)

    def _patch(self, batch: Batch, window: Window, standing: Standing, predicate: str) -> None:
        writer = self._writer(
            batch.upserted.coalesce(1), window, "patch", rows=standing.rows, written=batch.upserts
        )
        writer.mode("overwrite").option("replaceWhere", predicate).save(self.uri)

    def _merge(
        self, session: SparkSession, batch: Batch, window: Window, standing: Standing
    ) -> None:
        batch.rows.createOrReplaceTempView(_SOURCE)
        with self._transaction(session, window, standing.rows):
            session.sql(merge_statement(self.uri, _SOURCE, batch.key, batch.names)).collect()

    def advance(self, session: SparkSession, window: Window, standing: Standing) -> None:
        """Move the watermark over a window that changes nothing here, without Spark if possible."""
        from iscp_dagster.stores.delta_direct import commit_nothing

        identity = self._identity(window, "tail", rows=standing.rows)
        if commit_nothing(self.uri, self._at(standing.version), identity):
            self._checkpoint(standing.version + 1)
            return
        nothing = session.read.format("delta").load(self.uri).limit(0)
        with _conflicts(self.uri):
            writer = self._writer(nothing, window, "tail", rows=standing.rows)
            writer.mode("append").save(self.uri)

    def _checkpoint(self, version: int) -> None:
        """After some of our own commits, do what Spark does after its: keep the log short."""
        from deltalake.exceptions import DeltaError

        if not has_checkpoint(version):
            return
        # The window is in, whatever becomes of this; the next one tries again.
        with suppress(DeltaError, OSError):
            table = self._at(version)
            table.create_checkpoint()
            # Spark's checksum of the hint that was there before: with it, Spark would not believe
            # the new one.
            DeltaFiles(self.uri).delete([f"{LOG_FOLDER}/._last_checkpoint.crc"])
            table.cleanup_metadata()

    def drop(self) -> None:
        """Remove the index's files."""
        if provider_of(self.uri) == "local":
            path = local_path(self.uri)
            if path.exists():
                shutil.rmtree(path)
            return
        store = open_store(self.uri)
        for batch in store.list():
            store.delete([entry["path"] for entry in batch])

    def _writer(
        self, frame: DataFrame, window: Window, kind: str, **counts: int | None
    ) -> DataFrameWriter:
        return (
            frame.write.format("delta")
            .option("txnAppId", self.app_id)
            .option("txnVersion", window.end.version)
            .option("userMetadata", self._mark_text(window, kind, **counts))
        )

    @contextmanager
    def _transaction(
        self, session: SparkSession, window: Window, rows_before: int | None
    ) -> Iterator[None]:
        """Put the transaction id and the mark into the session's conf: MERGE has no options."""
        session.conf.set(_TXN_APP, self.app_id)
        session.conf.set(_TXN_VERSION, str(window.end.version))
        session.conf.set(_USER_METADATA, self._mark_text(window, "tail", rows=rows_before))
        try:
            yield
        finally:
            for name in (_TXN_APP, _TXN_VERSION, _USER_METADATA):
                session.conf.unset(name)

    def _identity(self, window: Window, kind: str, **counts: int | None) -> Identity:
        text = self._mark_text(window, kind, **counts)
        return Identity(self.app_id, window.end.version, text)

    def _mark_text(self, window: Window, kind: str, **counts: int | None) -> str:
        return json.dumps(
            {
                "iscp": self.job_id,
                "kind": kind,
                "from": str(window.start),
                "to": str(window.end),
                **counts,
            }
        )

    def _open(self, version: int | None = None) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        local = provider_of(self.uri) == "local"
        where = str(local_path(self.uri)) if local else self.uri
        try:
            options = storage_options_from_env(self.uri) or None
            return DeltaTable(where, version=version, storage_options=options)
        except TableNotFoundError:
            return None

    def _at(self, version: int) -> DeltaTable:
        table = self._open(version)
        if table is None:
            raise IndexContended(f"{self.uri}: the index went away")
        return table

    def _marks(self, table: DeltaTable) -> list[_Mark]:
        """The marks of the newest commits: mostly the last two are ours, and all that is needed."""
        marks: list[_Mark] = []
        for limit in (2, _LOOK_BACK):
            marks = [mark for commit in table.history(limit) if (mark := self._mark(commit))]
            if len(marks) > 1:
                break
        return marks

    def _mark(self, commit: Mapping[str, Any]) -> _Mark | None:
        try:
            mark = json.loads(commit.get("userMetadata") or "")
        except json.JSONDecodeError:
            return None
        if not isinstance(mark, dict) or mark.get("iscp") != self.job_id:
            return None
        return _Mark(
            kind=mark["kind"],
            start=TS.parse(mark["from"]),
            end=TS.parse(mark["to"]),
            rows=_rows_after(mark, commit.get("operationMetrics") or {}),
        )


@dataclass(frozen=True, slots=True)
class _Mark:
    """The mark of one commit, with the rows after it."""

    kind: str
    start: TS
    end: TS
    rows: int | None

    def follows(self, earlier: _Mark) -> bool:
        return self.kind == "snapshot" or self.start == earlier.end


def _spark_schema(table: DeltaTable) -> StructType:
    """The table's columns; what Delta notes beside them is not for others."""
    from pyspark.sql.types import StructField, StructType

    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    return StructType([StructField(field.name, field.dataType) for field in schema])


def _has_stats(rows: DataFrame, name: str) -> bool:
    """Whether Delta keeps minimum and maximum of a column's type."""
    type_ = rows.schema[name].dataType.simpleString()
    return type_.startswith("decimal") or type_ in _STATS_TYPES


def _rows_after(mark: Mapping[str, Any], metrics: Mapping[str, Any]) -> int | None:
    """Rows in the index after a commit: what it wrote, or what it changed in those before."""
    if mark["kind"] in ("snapshot", "rewrite"):
        written = metrics.get("numOutputRows")
        return None if written is None else int(written)
    if mark["kind"] == "direct" or mark["rows"] is None:
        return mark["rows"]
    if mark["kind"] == "patch":
        return mark["rows"] + mark["written"] - int(metrics.get("numDeletedRows", 0))
    inserted = metrics.get("numTargetRowsInserted", 0)
    return mark["rows"] + int(inserted) - int(metrics.get("numTargetRowsDeleted", 0))


@contextmanager
def _conflicts(uri: str) -> Iterator[None]:
    try:
        yield
    except spark_errors() as error:
        if has_condition(error, _CONFLICTS):
            raise IndexContended(f"{uri}: another writer was faster ({one_line(error)})") from error
        raise

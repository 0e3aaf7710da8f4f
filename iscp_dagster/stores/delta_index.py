"""A Delta table as an index: a window and its watermark in one commit.

Every commit of ours carries a *transaction id* (`iscp:<job_id>`, version = the window's end) and a
*mark*: a line of JSON in the commit's user metadata with the generation, the window and the number
of rows before it. The transaction id makes a replay a no-op and an older window lose; it is part of
the table's state and outlives log cleanup and VACUUM. The mark tells the rest: the time of the
watermark, the row count, and whether each window began where the one before ended. If one did not
(a late writer slipped in between another's look and its commit), the index is *broken*: it stands
at 0, and the next iteration builds it anew.

Everything that only asks goes without Spark.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iscp_dagster.errors import IndexContended
from iscp_dagster.rules.model import TS, Window
from iscp_dagster.sources.storage import (
    local_path,
    open_store,
    provider_of,
    storage_options_from_env,
)
from iscp_dagster.spark.sql import (
    has_condition,
    one_line,
    quote_identifier,
    quote_identifiers,
    quote_literal,
    quote_path_table,
    spark_errors,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

GONE = "_iscp_gone"
"""The column of a merge's source that tells a deletion from an upsert."""

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
class MergeCounts:
    """What a merge did."""

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
        marks = [mark for commit in table.history(_LOOK_BACK) if (mark := self._mark(commit))]
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
            self._writer(rows, window, "snapshot", 0).mode("overwrite").save(self.uri)

    def merge(
        self,
        session: SparkSession,
        source: DataFrame,
        key: Sequence[str],
        window: Window,
        rows_before: int | None,
    ) -> MergeCounts:
        """Apply a window: upsert the rows of `source` by key, delete those marked `GONE`."""
        source.createOrReplaceTempView(_SOURCE)
        names = [name for name in source.columns if name != GONE]
        with _conflicts(self.uri), self._transaction(session, window, rows_before):
            done = session.sql(_merge_statement(self.uri, key, names)).collect()
        if not done:  # Delta knew the transaction: somebody else applied the window
            return MergeCounts(0, 0)
        return MergeCounts(
            done[0]["num_updated_rows"] + done[0]["num_inserted_rows"], done[0]["num_deleted_rows"]
        )

    def advance(self, session: SparkSession, window: Window, rows_before: int | None) -> None:
        """Move the watermark over a window that changes nothing here."""
        nothing = session.read.format("delta").load(self.uri).limit(0)
        with _conflicts(self.uri):
            self._writer(nothing, window, "tail", rows_before).mode("append").save(self.uri)

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
        self, rows: DataFrame, window: Window, kind: str, rows_before: int | None
    ) -> DataFrameWriter:
        return (
            rows.write.format("delta")
            .option("txnAppId", self.app_id)
            .option("txnVersion", window.end.version)
            .option("userMetadata", self._mark_text(window, kind, rows_before))
        )

    @contextmanager
    def _transaction(
        self, session: SparkSession, window: Window, rows_before: int | None
    ) -> Iterator[None]:
        """Put the transaction id and the mark into the session's conf: MERGE has no options."""
        session.conf.set(_TXN_APP, self.app_id)
        session.conf.set(_TXN_VERSION, str(window.end.version))
        session.conf.set(_USER_METADATA, self._mark_text(window, "tail", rows_before))
        try:
            yield
        finally:
            for name in (_TXN_APP, _TXN_VERSION, _USER_METADATA):
                session.conf.unset(name)

    def _mark_text(self, window: Window, kind: str, rows_before: int | None) -> str:
        return json.dumps(
            {
                "iscp": self.job_id,
                "kind": kind,
                "from": str(window.start),
                "to": str(window.end),
                "rows": rows_before,
            }
        )

    def _open(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        local = provider_of(self.uri) == "local"
        where = str(local_path(self.uri)) if local else self.uri
        try:
            return DeltaTable(where, storage_options=storage_options_from_env(self.uri) or None)
        except TableNotFoundError:
            return None

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


def _has_stats(rows: DataFrame, name: str) -> bool:
    """Whether Delta keeps minimum and maximum of a column's type."""
    type_ = rows.schema[name].dataType.simpleString()
    return type_.startswith("decimal") or type_ in _STATS_TYPES


def _rows_after(mark: Mapping[str, Any], metrics: Mapping[str, Any]) -> int | None:
    if mark["kind"] == "snapshot":
        written = metrics.get("numOutputRows")
        return None if written is None else int(written)
    if mark["rows"] is None:
        return None
    inserted, deleted = (
        metrics.get("numTargetRowsInserted", 0),
        metrics.get("numTargetRowsDeleted", 0),
    )
    return mark["rows"] + int(inserted) - int(deleted)


def _merge_statement(uri: str, key: Sequence[str], names: Sequence[str]) -> str:
    keys = [quote_identifier(name) for name in key]
    rest = [quote_identifier(name) for name in names if name not in key]
    gone = f"s.{quote_identifier(GONE)}"
    lines = [
        f"merge into {quote_path_table(uri)} as t using {_SOURCE} as s",
        "on " + " and ".join(f"t.{name} <=> s.{name}" for name in keys),
        f"when matched and {gone} then delete",
    ]
    if rest:
        changes = ", ".join(f"t.{name} = s.{name}" for name in rest)
        lines.append(f"when matched then update set {changes}")
    listed = ", ".join(keys + rest)
    values = ", ".join(f"s.{name}" for name in keys + rest)
    insert = f"insert ({listed}) values ({values})"  # noqa: S608 - all quoted
    lines.append(f"when not matched and not {gone} then {insert}")
    return "\n".join(lines)


@contextmanager
def _conflicts(uri: str) -> Iterator[None]:
    try:
        yield
    except spark_errors() as error:
        if has_condition(error, _CONFLICTS):
            raise IndexContended(f"{uri}: another writer was faster ({one_line(error)})") from error
        raise

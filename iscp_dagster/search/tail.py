"""What a table got since an index last looked, read from the change feed through delta-rs.

The *tail* of an index is the stretch of history from its watermark to the table's newest version.
A key is *touched* if any version in the tail changed its row. The *rows* of a tail are the touched
rows as they are at its end; those that are touched and not among them are gone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iscp_dagster.errors import SourceColumnChanged, SourceTableReplaced, TailUnavailable
from iscp_dagster.rules.model import TS, Table
from iscp_dagster.search.conditions import quoted, render_filter
from iscp_dagster.search.engine import execute, open_delta
from iscp_dagster.sources.delta_log import open_log
from iscp_dagster.stores.lance_keys import canonical_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_CHANGE, _VERSION = "_change_type", "_commit_version"
_GOT = ("insert", "update_postimage")


@dataclass(frozen=True, slots=True)
class Tail:
    """The changes after a watermark."""

    end: TS
    source: DeltaTable
    """The table at the tail's end."""
    feed: pa.Table
    """Every image of every touched row."""
    rows: pa.Table
    touched: frozenset[str]
    """Canonical keys."""


def read_tail(table: Table, since: TS, build: Mapping[str, Any]) -> Tail | None:
    """Read what came after a watermark; None when nothing did.

    Args:
        table: The index's table.
        since: Where the index stands.
        build: What the index is made from: only its columns are read.

    Raises:
        TailUnavailable: The changes are gone or can't be read.
        SourceTableReplaced: Another table lives where the index's was.
        SourceColumnChanged: The table lost a column that the index reads.
    """
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    names = list(dict.fromkeys((*table.pk, *build["source"])))
    try:
        source = open_delta(table.uri)
        if source.metadata().id != table.delta_id:
            raise SourceTableReplaced(f"{table.key}: another Delta table lives at {table.uri}")
        if source.version() <= since.version:
            return None
        _check_columns(table, source, names)
        feed = _feed(source, since.version + 1, names)
    except (DeltaError, OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise TailUnavailable(
            f"{table.key}: the changes after {since} can't be read ({reason})"
        ) from error
    commit = open_log(table.uri, {}).read(source.version(), 1, None)[0].commit
    keys = canonical_keys([feed[name] for name in table.pk]).to_pylist()
    rows = feed.take(_last_images(feed, keys)).select(names)
    return Tail(commit.ts, source, feed.select(names), rows, frozenset(keys))


def belonging(rows: pa.Table, where: str | None) -> pa.Table:
    """Return the rows that a filter lets in."""
    if where is None or rows.num_rows == 0:
        return rows
    from deltalake import DeltaTable, write_deltalake

    with tempfile.TemporaryDirectory(prefix="iscp-search-") as folder:
        write_deltalake(folder, rows)
        condition = render_filter(where, rows.column_names)
        statement = f"select * from found where {condition}"  # noqa: S608 - written anew
        return execute({"found": DeltaTable(folder)}, statement, rows.schema)


def _check_columns(table: Table, source: DeltaTable, names: Sequence[str]) -> None:
    known = {field.name for field in source.schema().fields}
    for name in names:
        if name not in known:
            raise SourceColumnChanged(f"{table.key} has no column {name!r} any more")


def _feed(source: DeltaTable, start: int, names: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    reader = source.load_cdf(
        starting_version=start,
        ending_version=source.version(),
        columns=[quoted(name) for name in (*names, _CHANGE, _VERSION)],
    )
    fields = pa.schema(source.schema().to_arrow())
    feed = pa.RecordBatchReader.from_stream(reader).read_all()
    kinds = [fields.field(name).type for name in names]
    plain = [*zip(names, kinds, strict=True), (_CHANGE, pa.string()), (_VERSION, pa.int64())]
    return feed.select([*names, _CHANGE, _VERSION]).cast(pa.schema(plain))


def _last_images(feed: pa.Table, keys: Sequence[str]) -> list[int]:
    """Return which rows of the feed are the last images of rows that are still there.

    Images order by version; those before a change come ahead of those after it.
    """
    versions, changes = feed[_VERSION].to_pylist(), feed[_CHANGE].to_pylist()
    last: dict[str, tuple[int, bool, int]] = {}
    for row, (key, version, change) in enumerate(zip(keys, versions, changes, strict=True)):
        image = (version, change in _GOT, row)
        if key not in last or image > last[key]:
            last[key] = image
    return sorted(row for _, got, row in last.values() if got)

"""What a table got since an index last looked, read from the change feed through delta-rs.

The *tail* of an index is the stretch of history from its watermark to the table's newest version.
A key is *touched* if its row is not what it was before the tail, as far as the index reads it. The
*rows* of a tail are the touched rows as they are at its end; those that are touched and not among
them are gone.

A tail that was read stays *warm*: while the table gets no commit, the next search finds it in
memory. It is the table's log that tells, at every search. When there are commits, the tail *grows*:
only what they changed, a *step*, is read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from iscp_dagster.errors import (
    SourceColumnChanged,
    SourceTableReplaced,
    TableUnreadable,
    TailUnavailable,
)
from iscp_dagster.rules.model import TS, Table
from iscp_dagster.search.conditions import quoted, render_filter
from iscp_dagster.search.engine import execute, open_delta
from iscp_dagster.sources.delta_log import DeltaLog, open_log
from iscp_dagster.stores.lance_keys import canonical_keys
from iscp_dagster.stores.warm import Warm

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
    """Every image of every row that a commit named, with the version and the kind of change."""
    rows: pa.Table
    before: pa.Table
    """What each of the rows was before the tail; NULLs where that is not known, or nothing."""
    touched: frozenset[str]
    """Canonical keys."""
    made: dict[Hashable, Any] = field(default_factory=dict, compare=False)
    """What indexes made of it, kept as long as it is warm; `making` is held to add to it."""
    making: Lock = field(default_factory=Lock, compare=False, repr=False)
    grown: tuple[Tail, Tail] | None = None
    """The tail that was warm before, and the step from its end to this one's."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found when a table was last read: its newest commit, and the tail up to there."""

    version: int
    mark: object | None
    tail: Tail | None

    def is_newest(self, log: DeltaLog) -> bool:
        """Whether the table has had no commit since, nor was replaced."""
        return log.mark(self.version) == self.mark and not log.has(self.version + 1)


_seen: Warm[_Seen] = Warm(most=16, most_weight=256 * 1024**2)
_reading = [Lock() for _ in range(16)]
"""Held to read a tail, by its hash: whoever asks for the same one meanwhile finds it warm."""


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

    names = tuple(dict.fromkeys((*table.pk, *build["source"])))
    key = (table.uri, table.delta_id, table.pk, since, names)
    try:
        log = open_log(table.uri, {})
        with _reading[hash(key) % len(_reading)]:
            warm = _seen.get(key)
            if warm is not None and warm.is_newest(log):
                return warm.tail
            seen = _read(table, since, names, log, warm)
            if seen.mark is not None:
                _seen.put(key, seen, _weight(seen.tail))
            return seen.tail
    except (DeltaError, OSError, TableUnreadable, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise TailUnavailable(
            f"{table.key}: the changes after {since} can't be read ({reason})"
        ) from error


def forget_tails() -> None:
    """Give back the memory and the folders of the tails that are warm."""
    _seen.clear()


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


def same_rows(one: pa.Table, other: pa.Table, names: Sequence[str]) -> list[bool]:
    """Return for each row of two tables whether they agree in these columns, NULLs included."""
    from pyarrow.types import is_nested

    same = [True] * one.num_rows
    for name in names:
        # Vectors are compared as they are: as lists of numbers they would take long to make.
        lists = [t[name] if is_nested(t[name].type) else t[name].to_pylist() for t in (one, other)]
        pairs = zip(*lists, strict=True)
        same = [so_far and a == b for so_far, (a, b) in zip(same, pairs, strict=True)]
    return same


def _read(
    table: Table, since: TS, names: Sequence[str], log: DeltaLog, warm: _Seen | None
) -> _Seen:
    """Read a tail up to the newest commit there is."""
    newest = max(log.versions(since.version), default=None)
    mark = None if newest is None else log.mark(newest)
    source = open_delta(table.uri, newest)
    if source.metadata().id != table.delta_id:
        raise SourceTableReplaced(f"{table.key}: another Delta table lives at {table.uri}")
    tail = None
    if source.version() > since.version:
        _check_columns(table, source, names)
        last = log.read(source.version(), 1, None)
        if not last:
            raise TableUnreadable(f"commit {source.version()} is gone")
        end = last[0].commit.ts
        if warm is not None and log.mark(warm.version) == warm.mark:
            tail = _grown(warm, end, source, table.pk, names)
        if tail is None:
            tail = _net(end, source, _feed(source, since.version + 1, names), table.pk, names)
    # The commit's file is the same before and after: it is this table that was read.
    same = newest is not None and log.mark(newest) == mark
    return _Seen(source.version(), mark if same else None, tail)


def _grown(
    warm: _Seen, end: TS, source: DeltaTable, pk: Sequence[str], names: Sequence[str]
) -> Tail | None:
    """Let a warm tail grow; None where it can't, and has to be read as a whole."""
    import pyarrow as pa

    if warm.tail is None or not warm.version < end.version:
        return None
    feed = _feed(source, warm.version + 1, names)
    if feed.schema != warm.tail.feed.schema:
        return None
    whole = pa.concat_tables([warm.tail.feed, feed])
    step = _net(end, source, feed, pk, names)
    # What was before that is not needed: it would never end.
    before = replace(warm.tail, grown=None)
    return replace(_net(end, source, whole, pk, names), grown=(before, step))


def _weight(tail: Tail | None) -> int:
    if tail is None:
        return 0
    tables = [tail.feed, tail.rows, tail.before]
    if tail.grown is not None:
        tables += [tail.grown[0].rows, tail.grown[0].before]
    return sum(table.nbytes for table in tables)


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


def _net(
    end: TS, source: DeltaTable, feed: pa.Table, pk: Sequence[str], names: Sequence[str]
) -> Tail:
    """Reduce a feed to what is different at its end.

    Images order by version; those before a change come ahead of those after it. A row that one
    commit wrote without changing what the index reads is not touched.
    """
    import pyarrow as pa

    keys = canonical_keys([feed[name] for name in pk]).to_pylist()
    versions, changes = feed[_VERSION].to_pylist(), feed[_CHANGE].to_pylist()
    images: dict[str, list[tuple[int, bool, int]]] = {}
    for row, (key, version, change) in enumerate(zip(keys, versions, changes, strict=True)):
        images.setdefault(key, []).append((version, change in _GOT, row))
    there: list[tuple[str, int, int | None]] = []
    touched = set(images)
    for key, found in images.items():
        first, last = min(found), max(found)
        if last[1]:
            once = first[0] == last[0] and not first[1]
            there.append((key, last[2], first[2] if once else None))
    rows = feed.take(pa.array([row for _, row, _ in there], pa.int64())).select(names)
    before = feed.take(pa.array([row for _, _, row in there], pa.int64())).select(names)
    known = [was is not None for _, _, was in there]
    same = [a and b for a, b in zip(known, same_rows(rows, before, names), strict=True)]
    touched -= {key for (key, _, _), stays in zip(there, same, strict=True) if stays}
    other = pa.array([not stays for stays in same], pa.bool_())
    return Tail(
        end,
        source,
        feed,
        rows.filter(other),
        before.filter(other),
        frozenset(touched),
    )

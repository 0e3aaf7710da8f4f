"""A small window into a Delta index without Spark.

The rows have been made by Spark; what is left is to find some keys, to write some rows and to
commit, which costs Spark seconds of planning and none of it is work for a cluster. Where few of the
index's rows change, the old ones are marked as deleted and the new ones appended; where many do and
the index is small, it is written anew. The commit takes the version right after the one that was
looked at, or fails: whoever was faster wins.

Only what our own indexes have is written this way. For all else `apply_change` does nothing, and
says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp_dagster.stores.deletion_vectors import VectorUnreadable, read_vector
from iscp_dagster.stores.delta_columns import Column, check_features, columns_of, read_columns
from iscp_dagster.stores.delta_draft import Draft, Identity
from iscp_dagster.stores.delta_files import DeltaFiles, LiveFile, NotKnown
from iscp_dagster.stores.delta_keys import KeySet
from iscp_dagster.stores.delta_layout import files_for, files_of
from iscp_dagster.stores.delta_ways import SMALL_INDEX, has_checkpoint, is_rewritten

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyroaring import BitMap64

MOST_SOUGHT = 4_000_000
"""Rows in the files that may hold a changed key; where there are more, Spark looks for them."""
MOST_FILES = 256
MOST_REWRITTEN_BYTES = 32_000_000
"""Files of an index that is read as a whole, or written anew, here."""

_READERS = 8


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit does."""

    rows: pa.Table
    """The rows that shall be there afterwards: the index's columns."""
    keys: pa.Table
    """The keys of all rows that shall no longer be as they were, those of `rows` among them."""
    order: tuple[str, ...]
    """The columns that the index is sorted by."""
    fine: bool
    """Whether readers look for a few values of `order`."""


@dataclass(frozen=True, slots=True)
class _Hit:
    """The rows of one file that are to go."""

    file: LiveFile
    gone: BitMap64
    """All that are deleted afterwards."""
    fresh: int
    """How many of them are not deleted yet."""


def apply_change(
    uri: str, table: DeltaTable, change: Change, identify: Callable[[int], Identity]
) -> bool:
    """Apply a change to the version that `table` is at; False where Spark has to.

    Args:
        uri: Where the table is.
        table: The version that was looked at.
        change: What to do.
        identify: Tells whose commit it is, given the rows in the index afterwards.

    Raises:
        IndexContended: Another writer was faster.
    """
    import pyarrow as pa

    draft: Draft | None = None
    try:
        columns = columns_of(table)
        if sorted(column.name for column in columns) != sorted(change.rows.column_names):
            raise NotKnown("columns that the index was not made with")
        keys = KeySet.of(change.keys, columns)
        files = DeltaFiles(uri)
        live = files.live(table.version())
        hits = _find(files, live, keys)
        rest = _rest(files, table.version(), live, columns, change, hits)
        draft = Draft(files, columns, (*change.order, *change.keys.column_names))
        if rest is None:
            draft.mark([(hit.file, hit.gone) for hit in hits])
            for rows in files_of(change.rows, change.order, fine=False):
                draft.append(rows)
        else:
            for file in live:
                draft.remove(file)
            for rows in files_of(rest, change.order, fine=change.fine):
                draft.append(rows)
    except (NotKnown, VectorUnreadable, pa.ArrowException, OverflowError):
        if draft is not None:
            draft.discard()
        return False
    deleted = sum(hit.fresh for hit in hits)
    after = sum(file.live_rows for file in live) - deleted + change.rows.num_rows
    draft.commit(table.version(), identify(after), deleted)
    return True


def commit_nothing(uri: str, table: DeltaTable, identity: Identity) -> bool:
    """Make a commit that changes no rows; False where Spark has to.

    Raises:
        IndexContended: Another writer was faster.
    """
    try:
        check_features(table)
    except NotKnown:
        return False
    Draft(DeltaFiles(uri), (), ()).commit(table.version(), identity, 0)
    return True


def read_rows(uri: str, table: DeltaTable) -> pa.Table | None:
    """Read a whole version; None where it is too large, or only Spark can."""
    import pyarrow as pa

    try:
        columns = columns_of(table)
        files = DeltaFiles(uri)
        live = files.live(table.version())
        if sum(file.add["size"] for file in live) > MOST_REWRITTEN_BYTES:
            return None
        return _rows_of(files, live, columns, {})
    except (NotKnown, VectorUnreadable, pa.ArrowException):
        return None


def _find(files: DeltaFiles, live: Sequence[LiveFile], keys: KeySet) -> list[_Hit]:
    candidates = [file for file in live if keys.may_be_in(file)]
    if len(candidates) > MOST_FILES or sum(file.rows for file in candidates) > MOST_SOUGHT:
        raise NotKnown("too much to look through")
    with ThreadPoolExecutor(_READERS, "iscp-keys") as pool:
        found = list(pool.map(lambda file: _look(files, file, keys), candidates))
    return [hit for hit in found if hit.fresh]


def _look(files: DeltaFiles, file: LiveFile, keys: KeySet) -> _Hit:
    import numpy as np
    from pyroaring import BitMap64

    with files.open_parquet(file.path) as opened:
        positions = keys.positions(opened)
    gone = BitMap64(positions.astype(np.uint64))
    deleted = BitMap64() if file.vector is None else read_vector(file.vector, files.read)
    gone.update(deleted)
    return _Hit(file, gone, len(gone) - len(deleted))


def _rest(
    files: DeltaFiles,
    version: int,
    live: Sequence[LiveFile],
    columns: Sequence[Column],
    change: Change,
    hits: Sequence[_Hit],
) -> pa.Table | None:
    """The whole index as it shall be, where it is to be written anew; None where it is not."""
    import pyarrow as pa

    if sum(file.add["size"] for file in live) > MOST_REWRITTEN_BYTES:
        return None
    rows = sum(file.live_rows for file in live)
    scattered = len(live) > files_for(rows, fine=change.fine) and rows <= SMALL_INDEX
    gathered = scattered and has_checkpoint(version + 1)
    if not gathered and not is_rewritten(change.keys.num_rows, rows):
        return None
    kept = _rows_of(files, live, columns, {hit.file.path: hit.gone for hit in hits})
    return pa.concat_tables([kept, change.rows.select(kept.column_names).cast(kept.schema)])


def _rows_of(
    files: DeltaFiles,
    live: Sequence[LiveFile],
    columns: Sequence[Column],
    gone: dict[str, BitMap64],
) -> pa.Table:
    """The rows of files that are not deleted; `gone` tells where that is no longer the log's."""
    import pyarrow as pa

    def read(file: LiveFile) -> pa.Table:
        return _rows_in(files, file, columns, gone.get(file.path))

    with ThreadPoolExecutor(_READERS, "iscp-rows") as pool:
        parts = list(pool.map(read, live))
    schema = pa.schema([column.arrow.with_name(column.name) for column in columns])
    return pa.concat_tables([schema.empty_table(), *parts]).cast(schema.remove_metadata())


def _rows_in(
    files: DeltaFiles, file: LiveFile, columns: Sequence[Column], gone: BitMap64 | None
) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    with files.open_parquet(file.path) as opened:
        rows = read_columns(opened, columns)
    rows = rows.rename_columns([column.name for column in columns])
    if gone is None and file.vector is not None:
        gone = read_vector(file.vector, files.read)
    if gone is None:
        return rows
    kept = np.ones(file.rows, dtype=bool)
    kept[np.asarray(gone.to_array())] = False
    return rows.filter(pa.array(kept))

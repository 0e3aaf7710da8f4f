"""A small window into a Delta index without Spark: mark the old rows, append the new ones.

The rows have been made by Spark; what is left is to find a few keys, to write a few rows and to
commit, which costs Spark seconds of planning and none of it is work for a cluster. The commit takes
the version right after the one that was looked at, or fails: whoever was faster wins.

Only what our own indexes have is written this way: no features but deletion vectors and mapped
column names, no nested columns. For all else `patch` returns None, and nothing has happened.
"""

from __future__ import annotations

import bisect
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from iscp_dagster.errors import IndexContended
from iscp_dagster.stores.deletion_vectors import (
    VectorUnreadable,
    file_name,
    read_vector,
    write_vectors,
)
from iscp_dagster.stores.delta_columns import (
    Column,
    cast,
    columns_of,
    compute,
    parquet_of,
    read_columns,
    stats_of,
)
from iscp_dagster.stores.delta_files import DeltaFiles, LiveFile, NotKnown

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from deltalake import DeltaTable
    from numpy.typing import NDArray
    from pyarrow.parquet import ParquetFile
    from pyroaring import BitMap64

MOST_SOUGHT = 4_000_000
"""Rows in the files that may hold a changed key; where there are more, Spark looks for them."""
MOST_FILES = 256

_READERS = 8
_BOUNDS = re.compile(r'"tightBounds"\s*:\s*(true|false)')
_KEY_TYPES = frozenset(
    "string boolean byte short integer long date timestamp timestamp_ntz".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit does."""

    rows: pa.Table
    """The rows that shall be there afterwards: the index's columns."""
    keys: pa.Table
    """The keys of all rows that shall no longer be as they were, those of `rows` among them."""
    bounded: tuple[str, ...]
    """The columns whose least and greatest value the log tells."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit says about itself."""

    app_id: str
    version: int
    mark: str


def patch(uri: str, table: DeltaTable, change: Change, commit: Commit) -> int | None:
    """Apply a change to the version that `table` is at; return how many rows it took away.

    Returns None, with nothing done, where Spark has to do it.

    Raises:
        IndexContended: Another writer was faster.
    """
    try:
        columns = columns_of(table)
        keys = _KeySet.of(change.keys, columns)
        files = DeltaFiles(uri)
        candidates = [file for file in files.live(table.version()) if keys.may_be_in(file)]
        if len(candidates) > MOST_FILES or sum(file.rows for file in candidates) > MOST_SOUGHT:
            return None
        with ThreadPoolExecutor(_READERS, "iscp-keys") as pool:
            hits = list(pool.map(lambda file: _hits(files, file, keys), candidates))
    except (NotKnown, VectorUnreadable):
        return None
    return _write(files, table.version(), columns, change, commit, [h for h in hits if h.fresh])


def read_rows(uri: str, table: DeltaTable) -> pa.Table | None:
    """Read a whole version; None where only Spark can."""
    import pyarrow as pa

    try:
        columns = columns_of(table)
        files = DeltaFiles(uri)
        with ThreadPoolExecutor(_READERS, "iscp-rows") as pool:
            parts = list(
                pool.map(lambda file: _rows_of(files, file, columns), files.live(table.version()))
            )
    except (NotKnown, VectorUnreadable):
        return None
    names = [column.name for column in columns]
    empty = pa.schema([column.arrow for column in columns]).empty_table()
    return pa.concat_tables([empty, *parts]).rename_columns(names)


def _rows_of(files: DeltaFiles, file: LiveFile, columns: Sequence[Column]) -> pa.Table:
    """The rows of one file that are not deleted, with the names that columns have in files."""
    import numpy as np
    import pyarrow as pa

    with files.open_parquet(file.path) as opened:
        rows = read_columns(opened, columns)
    if file.vector is None:
        return rows
    kept = np.ones(file.rows, dtype=bool)
    kept[np.asarray(read_vector(file.vector, files.read).to_array())] = False
    return rows.filter(pa.array(kept))


@dataclass(frozen=True, slots=True)
class _Hit:
    """The rows of one file that are to go."""

    file: LiveFile
    gone: BitMap64
    """All that are deleted afterwards."""
    fresh: int
    """How many of them are not deleted yet."""


def _hits(files: DeltaFiles, file: LiveFile, keys: _KeySet) -> _Hit:
    import numpy as np
    from pyroaring import BitMap64

    with files.open_parquet(file.path) as opened:
        positions = keys.positions(opened)
    gone = BitMap64(positions.astype(np.uint64))
    deleted = BitMap64() if file.vector is None else read_vector(file.vector, files.read)
    gone.update(deleted)
    return _Hit(file, gone, len(gone) - len(deleted))


def _write(
    files: DeltaFiles,
    version: int,
    columns: Sequence[Column],
    change: Change,
    commit: Commit,
    hits: Sequence[_Hit],
) -> int:
    now, uuid = int(time.time() * 1000), uuid4()
    actions, written = [], []
    marked = [hit for hit in hits if len(hit.gone) < hit.file.rows]
    if marked:
        content, descriptors = write_vectors(uuid, [hit.gone for hit in marked])
        written.append(file_name(uuid))
        files.write(written[-1], content)
        actions += [
            {"add": _with_vector(hit.file, vector)}
            for hit, vector in zip(marked, descriptors, strict=True)
        ]
    actions += [{"remove": _removal(hit.file, now)} for hit in hits]
    if change.rows.num_rows:
        written.append(f"part-00000-{uuid}-c000.snappy.parquet")
        content = parquet_of(change.rows, columns)
        files.write(written[-1], content)
        stats = stats_of(change.rows, columns, change.bounded)
        actions.append({"add": _addition(written[-1], len(content), now, stats)})
    removed = sum(hit.fresh for hit in hits)
    info = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Overwrite"},
        "readVersion": version,
        "isolationLevel": "Serializable",
        "isBlindAppend": False,
        "operationMetrics": {
            "numOutputRows": str(change.rows.num_rows),
            "numDeletedRows": str(removed),
        },
        "userMetadata": commit.mark,
        "engineInfo": "iscp_dagster",
        "txnId": str(uuid),
    }
    txn = {"appId": commit.app_id, "version": commit.version, "lastUpdated": now}
    if not files.commit(version + 1, [{"commitInfo": info}, {"txn": txn}, *actions]):
        files.delete(written)
        raise IndexContended("another writer was faster")
    return removed


class _KeySet:
    """The keys to look for."""

    def __init__(self, keys: pa.Table, columns: Sequence[Column]) -> None:
        self._keys = keys
        self._columns = columns
        first = keys.column(0).drop_null()
        # Only such values compare in Python as the log's bounds do.
        ordered = columns[0].delta_type in ("string", "long", "integer", "short", "byte")
        self._sorted = sorted(set(first.to_pylist())) if ordered else None
        self._nulls = keys.column(0).null_count > 0

    @staticmethod
    def of(keys: pa.Table, columns: Sequence[Column]) -> _KeySet:
        by_name = {column.name: column for column in columns}
        used = [by_name[name] for name in keys.column_names]
        for column in used:
            if column.delta_type not in _KEY_TYPES and not column.delta_type.startswith("decimal"):
                raise NotKnown(f"key of type {column.delta_type}")
        return _KeySet(cast(keys, used), used)

    def may_be_in(self, file: LiveFile) -> bool:
        """Whether a file's bounds let a key be in it."""
        name = self._columns[0].physical
        low = file.stats.get("minValues", {}).get(name)
        high = file.stats.get("maxValues", {}).get(name)
        if self._sorted is None or self._nulls or low is None or high is None:
            return True
        at = bisect.bisect_left(self._sorted, low)
        # A long text's upper bound is cut; whatever begins like it may be there.
        return at < len(self._sorted) and (
            self._sorted[at] <= high
            or (isinstance(high, str) and self._sorted[at].startswith(high))
        )

    def positions(self, file: ParquetFile) -> NDArray[np.int64]:
        """Return the places of the rows in a file that have one of the keys."""
        import numpy as np

        pc = compute()
        found = read_columns(file, self._columns)
        pairs = zip(found.columns, self._keys.columns, strict=True)
        hits = [pc.is_in(column, value_set=keys.combine_chunks()) for column, keys in pairs]
        places = np.flatnonzero(reduce(pc.and_, hits).to_numpy())
        if len(hits) == 1:
            return places
        wanted, rows = set(_tuples(self._keys)), _tuples(found.take(places))
        return places[np.fromiter((row in wanted for row in rows), dtype=bool)]


def _tuples(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)


def _with_vector(file: LiveFile, vector: Mapping[str, Any]) -> dict[str, Any]:
    # As text: a number in it may have more digits than a float. Within a string every quote is
    # escaped, so that the pattern can only meet the field itself.
    stats, found = _BOUNDS.subn('"tightBounds":false', file.add["stats"])
    if not found:
        stats = stats.rstrip().removesuffix("}") + ',"tightBounds":false}'
    return {**file.add, "dataChange": True, "stats": stats, "deletionVector": vector}


def _removal(file: LiveFile, now: int) -> dict[str, Any]:
    removal = {
        "path": file.add["path"],
        "deletionTimestamp": now,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.add["size"],
    }
    return removal if file.vector is None else {**removal, "deletionVector": file.vector}


def _addition(path: str, size: int, now: int, stats: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "path": path,
        "partitionValues": {},
        "size": size,
        "modificationTime": now,
        "dataChange": True,
        "stats": json.dumps(stats, separators=(",", ":")),
    }

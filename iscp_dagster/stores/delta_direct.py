"""A small window into a Delta index without Spark: mark the old rows, append the new ones.

The rows have been made by Spark; what is left is to find a few keys, to write a few rows and to
commit, which costs Spark seconds of planning and none of it is work for a cluster. The commit takes
the version right after the one that was looked at, or fails: whoever was faster wins.

Only what our own indexes have is written this way: no features but deletion vectors and mapped
column names, no nested columns. For all else `patch` returns None, and nothing has happened.
"""

from __future__ import annotations

import bisect
import io
import json
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

_FEATURES = frozenset(("deletionVectors", "columnMapping", "appendOnly", "invariants"))
_READERS = 8
_LONGEST_BOUND = 64
"""Characters of a text that may be a file's least or greatest value; longer ones are not told."""
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


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    physical: str
    delta_type: str
    arrow: pa.Field


def patch(uri: str, table: DeltaTable, change: Change, commit: Commit) -> int | None:
    """Apply a change to the version that `table` is at; return how many rows it took away.

    Returns None, with nothing done, where Spark has to do it.

    Raises:
        IndexContended: Another writer was faster.
    """
    try:
        columns = _columns(table)
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
        columns = _columns(table)
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


def _rows_of(files: DeltaFiles, file: LiveFile, columns: Sequence[_Column]) -> pa.Table:
    """The rows of one file that are not deleted, with the names that columns have in files."""
    import numpy as np
    import pyarrow as pa

    with files.open_parquet(file.path) as opened:
        rows = _aligned(opened, columns)
    if file.vector is None:
        return rows
    kept = np.ones(file.rows, dtype=bool)
    kept[np.asarray(read_vector(file.vector, files.read).to_array())] = False
    return rows.filter(pa.array(kept))


def _aligned(file: ParquetFile, columns: Sequence[_Column]) -> pa.Table:
    """Some columns of a file, typed as the table types them."""
    import pyarrow as pa

    found = file.read(columns=[column.physical for column in columns])
    arrays = [found.column(column.physical).cast(column.arrow.type) for column in columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema([column.arrow for column in columns]))


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
    columns: Sequence[_Column],
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
        content = _parquet(change.rows, columns)
        files.write(written[-1], content)
        stats = _stats(change.rows, columns, change.bounded)
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

    def __init__(self, keys: pa.Table, columns: Sequence[_Column]) -> None:
        self._keys = keys
        self._columns = columns
        first = keys.column(0).drop_null()
        # Only such values compare in Python as the log's bounds do.
        ordered = columns[0].delta_type in ("string", "long", "integer", "short", "byte")
        self._sorted = sorted(set(first.to_pylist())) if ordered else None
        self._nulls = keys.column(0).null_count > 0

    @staticmethod
    def of(keys: pa.Table, columns: Sequence[_Column]) -> _KeySet:
        by_name = {column.name: column for column in columns}
        used = [by_name[name] for name in keys.column_names]
        for column in used:
            if column.delta_type not in _KEY_TYPES and not column.delta_type.startswith("decimal"):
                raise NotKnown(f"key of type {column.delta_type}")
        return _KeySet(_cast(keys, used), used)

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

        pc = _compute()
        found = _aligned(file, self._columns)
        pairs = zip(found.columns, self._keys.columns, strict=True)
        hits = [pc.is_in(column, value_set=keys.combine_chunks()) for column, keys in pairs]
        places = np.flatnonzero(reduce(pc.and_, hits).to_numpy())
        if len(hits) == 1:
            return places
        wanted, rows = set(_tuples(self._keys)), _tuples(found.take(places))
        return places[np.fromiter((row in wanted for row in rows), dtype=bool)]


def _compute() -> Any:
    """Arrow's functions: they are made when the module is loaded, so nobody can list them."""
    import pyarrow.compute

    return pyarrow.compute


def _tuples(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)


def _columns(table: DeltaTable) -> list[_Column]:
    """The table's columns; raises where the table has more than our own indexes."""
    protocol, metadata = table.protocol(), table.metadata()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    if not features <= _FEATURES or "deletionVectors" not in features:
        raise NotKnown(f"features {sorted(features)}")
    settings = metadata.configuration
    if metadata.partition_columns or settings.get("delta.appendOnly", "false") != "false":
        raise NotKnown("partitions or appends only")
    if settings.get("delta.enableDeletionVectors") != "true":
        raise NotKnown("deletion vectors are off")
    mapped = settings.get("delta.columnMapping.mode", "none") != "none"
    found = json.loads(table.schema().to_json())["fields"]
    return [_column(field, mapped) for field in found]


def _column(field: Mapping[str, Any], mapped: bool) -> _Column:
    import pyarrow as pa

    metadata = field.get("metadata") or {}
    known = {name for name in metadata if name.startswith("delta.columnMapping.")}
    if known != set(metadata) - {"comment"}:
        raise NotKnown(f"column {field['name']} with {sorted(metadata)}")
    physical = str(metadata["delta.columnMapping.physicalName"]) if mapped else field["name"]
    ids = {"PARQUET:field_id": str(metadata["delta.columnMapping.id"])} if mapped else None
    arrow = pa.field(physical, _arrow_type(field["type"]), bool(field["nullable"]), ids)
    return _Column(field["name"], physical, field["type"], arrow)


def _arrow_type(delta_type: Any) -> pa.DataType:
    import pyarrow as pa

    plain: dict[str, pa.DataType] = {
        "string": pa.string(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    if isinstance(delta_type, str) and delta_type in plain:
        return plain[delta_type]
    if isinstance(delta_type, str) and delta_type.startswith("decimal("):
        precision, scale = delta_type[len("decimal(") : -1].split(",")
        return pa.decimal128(int(precision), int(scale))
    raise NotKnown(f"type {delta_type}")


def _cast(rows: pa.Table, columns: Sequence[_Column]) -> pa.Table:
    """Rows with the columns as the data files call and type them."""
    import pyarrow as pa

    arrays = [rows.column(column.name).cast(column.arrow.type) for column in columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema([column.arrow for column in columns]))


def _parquet(rows: pa.Table, columns: Sequence[_Column]) -> bytes:
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(_cast(rows, columns), out, compression="snappy", store_schema=False)
    return out.getvalue()


def _stats(rows: pa.Table, columns: Sequence[_Column], bounded: Sequence[str]) -> dict[str, Any]:
    pc = _compute()
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in columns:
        if column.name not in bounded:
            continue
        values = rows.column(column.name).cast(column.arrow.type)
        nulls[column.physical] = values.null_count
        if values.null_count == len(values) or not _tells_bounds(column.delta_type):
            continue
        ends = pc.min_max(values).as_py()
        least, greatest = _json(ends["min"]), _json(ends["max"])
        if isinstance(greatest, str) and max(len(least), len(greatest)) > _LONGEST_BOUND:
            continue
        low[column.physical], high[column.physical] = least, greatest
    return {
        "numRecords": rows.num_rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": nulls,
        "tightBounds": True,
    }


def _tells_bounds(delta_type: str) -> bool:
    """Whether bounds of that type are written the same by everybody."""
    return delta_type in ("string", "byte", "short", "integer", "long", "date")


def _json(value: Any) -> Any:
    return value if isinstance(value, int | str) else value.isoformat()


def _with_vector(file: LiveFile, vector: Mapping[str, Any]) -> dict[str, Any]:
    # As text: a number in it may have more digits than a float. Within a string every quote is
    # escaped, so that this can only meet the field itself.
    stats = file.add["stats"].replace('"tightBounds":true', '"tightBounds":false')
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

"""The columns of a Delta index as its data files have them, and small files written with them.

A column has a *physical* name in the files where names are mapped. Only what our own indexes have
is known: plain columns, and no feature but deletion vectors, mapped names and local timestamps.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iscp_dagster.stores.delta_files import NotKnown

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyarrow.parquet import ParquetFile

_FEATURES = frozenset(
    ("deletionVectors", "columnMapping", "appendOnly", "invariants", "timestampNtz")
)
_LONGEST_BOUND = 64
"""Characters of a text that may be a file's least or greatest value; longer ones are not told."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an index."""

    name: str
    physical: str
    delta_type: str
    arrow: pa.Field


def columns_of(table: DeltaTable) -> list[Column]:
    """Return the columns of a table.

    Raises:
        NotKnown: The table has more than our own indexes have, or columns with parts.
    """
    mapped = check_features(table)
    found = json.loads(table.schema().to_json())["fields"]
    return [_column(field, mapped) for field in found]


def check_features(table: DeltaTable) -> bool:
    """Return whether a table's columns have other names in its files.

    Raises:
        NotKnown: The table has more than our own indexes have.
    """
    protocol, metadata = table.protocol(), table.metadata()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    if not features <= _FEATURES or "deletionVectors" not in features:
        raise NotKnown(f"features {sorted(features)}")
    settings = metadata.configuration
    if metadata.partition_columns or settings.get("delta.appendOnly", "false") != "false":
        raise NotKnown("partitions or appends only")
    if settings.get("delta.enableDeletionVectors") != "true":
        raise NotKnown("deletion vectors are off")
    return settings.get("delta.columnMapping.mode", "none") != "none"


def _column(field: Mapping[str, Any], mapped: bool) -> Column:
    import pyarrow as pa

    metadata = field.get("metadata") or {}
    known = {name for name in metadata if name.startswith("delta.columnMapping.")}
    physical = str(metadata["delta.columnMapping.physicalName"]) if mapped else field["name"]
    # A file's statistics have a field of that name, too, and are changed as text.
    if known != set(metadata) - {"comment"} or physical == "tightBounds":
        raise NotKnown(f"column {field['name']} with {sorted(metadata)}")
    ids = {"PARQUET:field_id": str(metadata["delta.columnMapping.id"])} if mapped else None
    arrow = pa.field(physical, _arrow_type(field["type"]), bool(field["nullable"]), ids)
    return Column(field["name"], physical, field["type"], arrow)


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


def cast(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Rows with the columns as the data files call and type them."""
    import pyarrow as pa

    arrays = [rows.column(column.name).cast(column.arrow.type) for column in columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema([column.arrow for column in columns]))


def parquet_of(rows: pa.Table, columns: Sequence[Column]) -> bytes:
    """Return a data file with these rows."""
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(cast(rows, columns), out, compression="snappy", store_schema=False)
    return out.getvalue()


def stats_of(rows: pa.Table, columns: Sequence[Column], bounded: Sequence[str]) -> dict[str, Any]:
    """Return what the log tells of a file with these rows; bounds only of some columns."""
    pc = compute()
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
        try:
            ends = pc.min_max(values).as_py()
        except OverflowError:  # a year that Python has not
            continue
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


def read_columns(file: ParquetFile, columns: Sequence[Column]) -> pa.Table:
    """Some columns of a file, typed as the table types them."""
    import pyarrow as pa

    found = file.read(columns=[column.physical for column in columns])
    arrays = [found.column(column.physical).cast(column.arrow.type) for column in columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema([column.arrow for column in columns]))


def compute() -> Any:
    """Arrow's functions: they are made when the module is loaded, so nobody can list them."""
    import pyarrow.compute

    return pyarrow.compute

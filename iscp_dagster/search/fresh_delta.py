"""What a Delta index would hold if it were synced: the overlay of its tail.

A lookup gets the touched rows that belong to it. Of an aggregate, every group that a touched row
was or is in gets computed anew, from the table at the tail's end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any

from iscp_dagster.search.conditions import engine_type, literal, quoted, render_filter
from iscp_dagster.search.delta import DeltaReader, Overlay
from iscp_dagster.search.engine import execute
from iscp_dagster.search.tail import Tail, belonging
from iscp_dagster.stores.lance_keys import canonical_keys

if TYPE_CHECKING:
    import pyarrow as pa

_EXACT = Context(prec=76, rounding=ROUND_HALF_UP)


def overlay_of(reader: DeltaReader, tail: Tail) -> Overlay:
    """Return what the index does not hold yet; worked out once for a tail."""
    place = reader.table.table_uri
    with tail.making:
        at, overlay = tail.made.get(place, (None, None))
        if overlay is None or at != reader.table.version():
            overlay = _overlay(reader, tail)
            tail.made[place] = (reader.table.version(), overlay)
    return overlay


def _overlay(reader: DeltaReader, tail: Tail) -> Overlay:
    if "group_by" in reader.build:
        return _groups(reader, tail)
    rows = belonging(tail.rows, reader.build["where"]).select(reader.build["columns"])
    return Overlay(tail.end, rows.cast(reader.schema), tail.touched)


def _groups(reader: DeltaReader, tail: Tail) -> Overlay:
    """Compute the touched groups anew."""
    from deltalake import DeltaTable, write_deltalake

    groups = tail.feed.select(list(reader.key)).group_by(list(reader.key)).aggregate([])
    masked = frozenset(canonical_keys([groups[name] for name in reader.key]).to_pylist())
    with tempfile.TemporaryDirectory(prefix="iscp-search-") as folder:
        write_deltalake(folder, groups)
        tables = {"source": tail.source, "touched": DeltaTable(folder)}
        schema, averages = _with_parts(reader)
        rows = execute(tables, _statement(reader, schema), schema)
    return Overlay(tail.end, _averaged(rows, reader.schema, averages), masked)


def _with_parts(reader: DeltaReader) -> tuple[pa.Schema, Mapping[str, tuple[str, str]]]:
    """Return what to compute: the index's columns, but the parts of averages of decimals.

    The engine and Spark round such averages differently; whole sums and counts are the same.
    """
    import pyarrow as pa

    averages: dict[str, tuple[str, str]] = {}
    fields: list[pa.Field] = []
    for field in reader.schema:
        if field.name.startswith("avg_") and pa.types.is_decimal(field.type):
            parts = (f"_sum_{field.name}", f"_count_{field.name}")
            averages[field.name] = parts
            fields += [pa.field(parts[0], pa.decimal128(38, 18)), pa.field(parts[1], pa.int64())]
        else:
            fields.append(pa.field(field.name, field.type))
    return pa.schema(fields), averages


def _statement(reader: DeltaReader, schema: pa.Schema) -> str:
    build = reader.build
    values = {name: f"s.{quoted(name)}" for name in build["group_by"]}
    for function, column in build["measures"]:
        of = "*" if column is None else f"s.{quoted(column)}"
        name = function if column is None else f"{function}_{column}"
        values[name] = f"{function}({of})"
        if function == "avg":
            values[f"_sum_{name}"], values[f"_count_{name}"] = f"sum({of})", f"count({of})"
    listed = ", ".join(
        f"arrow_cast({values[field.name]}, {literal(engine_type(field.type))}) "
        f"as {quoted(field.name)}"
        for field in schema
    )
    same = " and ".join(
        f"s.{quoted(name)} is not distinct from t.{quoted(name)}" for name in build["group_by"]
    )
    source = "source"
    if build["where"] is not None:
        condition = render_filter(build["where"], list(build["source"]))
        source = f"(select * from source where {condition})"  # noqa: S608 - written anew
    grouped = ", ".join(f"s.{quoted(name)}" for name in build["group_by"])
    return f"select {listed} from {source} s join touched t on {same} group by {grouped}"  # noqa: S608 - all quoted


def _averaged(
    rows: pa.Table, schema: pa.Schema, averages: Mapping[str, tuple[str, str]]
) -> pa.Table:
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for field in schema:
        if field.name not in averages:
            columns[field.name] = rows[field.name]
            continue
        sums, counts = (rows[part].to_pylist() for part in averages[field.name])
        digits = Decimal(1).scaleb(-field.type.scale)
        values = [
            _EXACT.divide(total, Decimal(count)).quantize(digits, context=_EXACT) if count else None
            for total, count in zip(sums, counts, strict=True)
        ]
        columns[field.name] = pa.array(values, field.type)
    return pa.Table.from_arrays(list(columns.values()), schema=schema)

"""Asking a Delta index: lookups, mirrors and aggregates, through delta-rs.

The index is read at the version whose watermark was read: nothing that is committed meanwhile
changes the answer. An *overlay* is what the index does not hold yet: rows that stand in place of
its rows with the same keys.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iscp_dagster.errors import UsageError
from iscp_dagster.rules.model import TS
from iscp_dagster.search.conditions import parse_terms, quoted, render_filter, render_terms
from iscp_dagster.search.engine import execute, open_delta
from iscp_dagster.search.result import Answer
from iscp_dagster.stores.delta_index import DeltaIndex
from iscp_dagster.stores.lance_keys import canonical_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_INTERNAL = "_iscp_"
_NAME = "found"


@dataclass(frozen=True, slots=True)
class Overlay:
    """What an index would hold if it were synced: for the masked keys, these rows and no others."""

    end: TS
    rows: pa.Table
    masked: frozenset[str]


@dataclass(frozen=True, slots=True)
class DeltaReader:
    """A Delta index at one version."""

    table: DeltaTable
    build: Mapping[str, Any]
    watermark: TS

    @staticmethod
    def open(uri: str, job_id: int) -> DeltaReader | None:
        """Open an index where it stands; None when it has never been synced, or is broken."""
        index = DeltaIndex(uri, job_id)
        standing = index.standing()
        build = index.build()
        if standing is None or build is None or standing.watermark.is_zero:
            return None
        return DeltaReader(open_delta(uri, standing.version), build, standing.watermark)

    @property
    def key(self) -> tuple[str, ...]:
        """What tells one row of the index from another."""
        return tuple(self.build.get("group_by") or self.build["key"])

    @property
    def order(self) -> tuple[str, ...]:
        """What the answers are sorted by."""
        return tuple(dict.fromkeys((*self.build.get("by", ()), *self.key)))

    @property
    def schema(self) -> pa.Schema:
        """The columns that can be asked for and returned, with their types."""
        import pyarrow as pa

        fields = pa.schema(self.table.schema().to_arrow())
        return pa.schema([field for field in fields if not field.name.startswith(_INTERNAL)])

    def find(
        self,
        query: str | None,
        k: int,
        where: str | None,
        columns: Sequence[str] | None,
        overlay: Overlay | None = None,
    ) -> Answer:
        """Return the first k rows that fit all conditions.

        Args:
            query: `column=value …`, or a value of the first column the index is sorted by.
            k: How many rows.
            where: A filter over the index's columns.
            columns: The columns to return beside the key; all by default.
            overlay: What the index does not hold yet.

        Raises:
            UsageError: The index has no such column, or a condition can't be read.
        """
        schema = self.schema
        conditions = []
        if query:
            conditions += render_terms(parse_terms(query, self.order[0]), schema)
        if where:
            conditions.append(render_filter(where, schema.names))
        wanted = _wanted(self.key, columns, schema.names)
        read = _part(schema, dict.fromkeys((*wanted, *self.order)))
        # As many rows more as can be masked: enough are left.
        limit = k + (len(overlay.masked) if overlay else 0)
        found = execute(
            {_NAME: self.table}, _statement(read.names, conditions, self.order, limit), read
        )
        watermark = self.watermark
        if overlay is not None:
            found, watermark = self._overlaid(found, overlay, conditions), overlay.end
        hits = found.slice(0, k).select(wanted)
        return Answer(hits, None, self.key, watermark, self.table.version())

    def _overlaid(self, found: pa.Table, overlay: Overlay, conditions: Sequence[str]) -> pa.Table:
        """Put the overlay's rows that fit in the place of the masked ones."""
        import pyarrow as pa

        keys = canonical_keys([found[name] for name in self.key]).to_pylist()
        stay = pa.array([key not in overlay.masked for key in keys], pa.bool_())
        rows = [found.filter(stay)]
        if overlay.rows.num_rows:
            rows.append(_fitting(overlay.rows, conditions, found.schema))
        merged = pa.concat_tables(rows)
        return merged.take(_nulls_first([merged[name] for name in self.order]))


def _fitting(rows: pa.Table, conditions: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Ask rows in memory as the index is asked: by the same engine."""
    from deltalake import DeltaTable, write_deltalake

    if not conditions:
        return rows.select(schema.names).cast(schema)
    with tempfile.TemporaryDirectory(prefix="iscp-search-") as folder:
        write_deltalake(folder, rows)
        statement = _statement(schema.names, conditions, (), rows.num_rows)
        return execute({_NAME: DeltaTable(folder)}, statement, schema)


def _nulls_first(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    """Return the order of rows by columns, as the engine sorts them."""
    import pyarrow as pa
    from pyarrow import compute

    # How to ask for nulls first differs between versions of pyarrow; false is before true in all.
    by: dict[str, Any] = {}
    for i, column in enumerate(columns):
        by |= {f"{i}-there": column.is_valid(), f"{i}-value": column}
    options = compute.SortOptions([(name, "ascending") for name in by])
    return compute.call_function("sort_indices", [pa.table(by)], options)


def _part(schema: pa.Schema, names: Mapping[str, None]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([schema.field(name) for name in names])


def _wanted(key: Sequence[str], columns: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    wanted = list(dict.fromkeys((*key, *(known if columns is None else columns))))
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"columns: the index has no {name!r}", cure=f"it has {', '.join(known)}"
            )
    return wanted


def _statement(
    columns: Sequence[str], conditions: Sequence[str], order: Sequence[str], limit: int
) -> str:
    listed = ", ".join(map(quoted, columns))
    statement = f"select {listed} from {_NAME}"  # noqa: S608 - all quoted
    if conditions:
        statement += f" where {' and '.join(conditions)}"
    if order:
        statement += " order by " + ", ".join(f"{quoted(name)} nulls first" for name in order)
    return f"{statement} limit {limit:d}"

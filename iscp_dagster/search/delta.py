"""Asking a Delta index: lookups, mirrors and aggregates, through delta-rs.

The index is read at the version whose watermark was read: nothing that is committed meanwhile
changes the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iscp_dagster.errors import UsageError
from iscp_dagster.rules.model import TS
from iscp_dagster.search.conditions import parse_terms, quoted, render_filter, render_terms
from iscp_dagster.search.result import Answer
from iscp_dagster.sources.storage import local_path, provider_of, storage_options_from_env
from iscp_dagster.stores.delta_index import DeltaIndex

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_INTERNAL = "_iscp_"
_NAME = "found"


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
        self, query: str | None, k: int, where: str | None, columns: Sequence[str] | None
    ) -> Answer:
        """Return the first k rows that fit all conditions.

        Args:
            query: `column=value …`, or a value of the first column the index is sorted by.
            k: How many rows.
            where: A filter over the index's columns.
            columns: The columns to return beside the key; all by default.

        Raises:
            UsageError: The index has no such column, or a condition can't be read.
        """
        schema = self.schema
        conditions = []
        if query:
            terms = parse_terms(query, self.order[0] if self.order else None)
            conditions += render_terms(terms, schema)
        if where:
            conditions.append(render_filter(where, schema.names))
        wanted = _wanted(self.key, columns, schema.names)
        rows = _execute(self.table, _statement(wanted, conditions, self.order, k))
        plain = pa_schema(schema, wanted)
        return Answer(rows.cast(plain), None, self.key, self.watermark, self.table.version())


def open_delta(uri: str, version: int | None = None) -> DeltaTable:
    """Open a Delta table at a version; the newest by default."""
    from deltalake import DeltaTable

    where = str(local_path(uri)) if provider_of(uri) == "local" else uri
    return DeltaTable(where, version, storage_options_from_env(uri) or None)


def pa_schema(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return some fields of a schema: the engine's own types for text are not everybody's."""
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
    columns: Sequence[str], conditions: Sequence[str], order: Sequence[str], k: int
) -> str:
    listed = ", ".join(map(quoted, columns))
    statement = f"select {listed} from {_NAME}"  # noqa: S608 - all quoted
    if conditions:
        statement += f" where {' and '.join(conditions)}"
    if order:
        statement += " order by " + ", ".join(f"{quoted(name)} nulls first" for name in order)
    return f"{statement} limit {k:d}"


def _execute(table: DeltaTable, statement: str) -> pa.Table:
    import pyarrow as pa
    from deltalake import QueryBuilder
    from deltalake.exceptions import DeltaError

    try:
        found = QueryBuilder().register(_NAME, table).execute(statement)
        return pa.table(found.read_all())
    except DeltaError as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"query: the index can't answer it ({reason})") from error

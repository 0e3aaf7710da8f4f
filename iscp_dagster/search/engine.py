"""The SQL engine inside delta-rs: statements over Delta tables, answers as Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from iscp_dagster.errors import IndexUnreadable, UsageError
from iscp_dagster.sources.storage import local_path, provider_of, storage_options_from_env

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

# What a filter itself may run into, row by row; the engine says both in the one way or the other.
_OF_THE_FILTER = ("DivideByZero", "Divide by zero", "CastError", "Cast error", "verflow")


def open_delta(uri: str, version: int | None = None) -> DeltaTable:
    """Open a Delta table at a version; the newest by default."""
    from deltalake import DeltaTable

    where = str(local_path(uri)) if provider_of(uri) == "local" else uri
    return DeltaTable(where, version, storage_options_from_env(uri) or None)


def execute(tables: Mapping[str, DeltaTable], statement: str, schema: pa.Schema) -> pa.Table:
    """Run a statement over tables, each under its name.

    Args:
        tables: What the statement can read.
        statement: SQL in which all that users wrote is quoted or written anew.
        schema: What the answer is turned into: the engine's types for text are its own.

    Raises:
        UsageError: The statement does not fit the tables, or their values.
        IndexUnreadable: The tables' files can't be read.
    """
    import pyarrow as pa
    from deltalake import QueryBuilder
    from deltalake.exceptions import DeltaError

    builder = QueryBuilder()
    for name, table in tables.items():
        builder.register(name, table)
    planned = False
    try:
        stream = builder.execute(statement)
        planned = True
        found = pa.RecordBatchReader.from_stream(stream).read_all()
    except (DeltaError, pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        if planned and not any(mark in reason for mark in _OF_THE_FILTER):
            raise IndexUnreadable(f"the index can't be read ({reason})") from error
        raise UsageError(f"query: the index can't answer it ({reason})") from error
    return found.select(schema.names).cast(schema)

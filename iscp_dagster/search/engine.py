"""The SQL engine inside delta-rs: statements over Delta tables, answers as Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from iscp_dagster.errors import UsageError
from iscp_dagster.sources.storage import local_path, provider_of, storage_options_from_env

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable


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
    """
    import pyarrow as pa
    from deltalake import QueryBuilder
    from deltalake.exceptions import DeltaError

    builder = QueryBuilder()
    for name, table in tables.items():
        builder.register(name, table)
    try:
        found = pa.RecordBatchReader.from_stream(builder.execute(statement)).read_all()
    except (DeltaError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"query: the index can't answer it ({reason})") from error
    return found.select(schema.names).cast(schema)

"""What registration and assets need to know about a source table, without a JVM.

Types are written the way Spark writes them (`bigint`, `array<float>`, `decimal(10,2)`), so that
they compare with a DataFrame's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iscp_dagster.errors import TableUnreadable, UnknownDeltaTable
from iscp_dagster.rules.model import TS, Window
from iscp_dagster.sources.delta_log import one_line, open_log
from iscp_dagster.sources.storage import local_path, provider_of, storage_options_from_env

if TYPE_CHECKING:
    from deltalake import DeltaTable

# A store that is away is reported within seconds; delta-rs would try for three minutes.
_IMPATIENT = {"connect_timeout": "5s", "max_retries": "2", "retry_timeout": "10s"}
# Delta's names of types that Spark calls otherwise.
_SPARK_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a source table."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A source table at its newest version."""

    delta_id: str
    ts: TS
    columns: tuple[Column, ...]
    partition_columns: tuple[str, ...]
    change_feed: bool
    """Whether the table records its changes from now on."""
    min_reader_version: int
    min_writer_version: int
    features: frozenset[str]
    """Reader and writer features the protocol names."""

    def column(self, name: str) -> Column | None:
        """Return the column called `name`, without regard to case as in Spark."""
        return next((c for c in self.columns if c.name.lower() == name.lower()), None)


def read_facts(uri: str) -> TableFacts:
    """Read a table's facts.

    Raises:
        UnknownDeltaTable: there is no Delta table at `uri`.
        TableUnreadable: there may be one, but it can't be read now.
    """
    with _errors_of(uri):
        table = _open(uri)
        metadata, protocol = table.metadata(), table.protocol()
        schema = json.loads(table.schema().to_json())
        version = table.version()
    features = (protocol.reader_features or []) + (protocol.writer_features or [])
    feed = metadata.configuration.get("delta.enableChangeDataFeed") or "false"
    return TableFacts(
        delta_id=str(metadata.id),
        ts=_ts(uri, version),
        columns=tuple(
            Column(field["name"], type_text(field["type"]), field["nullable"])
            for field in schema["fields"]
        ),
        partition_columns=tuple(metadata.partition_columns),
        change_feed=feed.lower() == "true",
        min_reader_version=protocol.min_reader_version,
        min_writer_version=protocol.min_writer_version,
        features=frozenset(features),
    )


def read_delta_id(uri: str) -> str:
    """Return the id of the Delta table that is at `uri` now."""
    with _errors_of(uri):
        return str(_open(uri).metadata().id)


def estimate_rows(uri: str) -> int | None:
    """Add up the row counts in the file statistics; None when a file has none.

    Rows hidden by deletion vectors are counted: an estimate, never used for more.
    """
    with _errors_of(uri):
        actions = _open(uri).get_add_actions(flatten=True)
        if actions.num_rows == 0:
            return 0
        if "num_records" not in actions.schema.names:
            return None
        counts = actions.column("num_records").to_pylist()
    return None if None in counts else sum(counts)


def bytes_to_read(uri: str, window: Window, *, snapshot: bool) -> int | None:
    """Add up the files that a reader of a window opens, as the table's log tells.

    A reader of some columns reads less of them. None where the log no longer tells.
    """
    start, end = window.start.version, window.end.version
    if snapshot:
        with _errors_of(uri):
            table = _open(uri)
            table.load_as_version(end)
            return sum(table.get_add_actions(flatten=True).column("size_bytes").to_pylist())
    read = open_log(uri, {}).read(start + 1, end - start, None)
    if len(read) < end - start:
        return None
    return sum(one.commit.bytes for one in read if one.commit.data_change)


def type_text(delta_type: str | dict[str, Any]) -> str:
    """Write a type of a Delta schema the way Spark does."""
    if isinstance(delta_type, str):
        return _SPARK_NAMES.get(delta_type, delta_type)
    match delta_type["type"]:
        case "array":
            return f"array<{type_text(delta_type['elementType'])}>"
        case "map":
            key, value = delta_type["keyType"], delta_type["valueType"]
            return f"map<{type_text(key)},{type_text(value)}>"
        case _:
            fields = delta_type.get("fields", ())
            inner = ",".join(f"{field['name']}:{type_text(field['type'])}" for field in fields)
            return f"struct<{inner}>"


def _ts(uri: str, version: int) -> TS:
    read = open_log(uri, {}).read(version, 1, None)
    if not read:
        raise TableUnreadable(f"{uri}: commit {version} went away while it was read")
    return read[0].commit.ts


def _open(uri: str) -> DeltaTable:
    from deltalake import DeltaTable

    if provider_of(uri) == "local":
        path = local_path(uri)
        if path.is_file():
            raise UnknownDeltaTable(f"{uri} is a file, not a Delta table")
        return DeltaTable(str(path))
    return DeltaTable(uri, storage_options=_IMPATIENT | storage_options_from_env(uri))


@contextmanager
def _errors_of(uri: str) -> Iterator[None]:
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        yield
    except TableNotFoundError as error:
        raise UnknownDeltaTable(f"{uri} is not a Delta table") from error
    except (DeltaError, OSError, ValueError) as error:
        raise TableUnreadable(f"{uri}: {one_line(error)}") from error

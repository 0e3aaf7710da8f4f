"""Making a Delta table fit to be a source: its uri in one spelling, its change feed on."""

from __future__ import annotations

from iscp_dagster.errors import TableUnreadable
from iscp_dagster.sources.delta_log import one_line
from iscp_dagster.sources.storage import local_path, provider_of, storage_options_from_env


def normalize_uri(uri: str) -> str:
    """Return the one spelling of a uri that the log keeps: absolute, without a trailing slash."""
    if provider_of(uri) == "local":
        return str(local_path(uri).expanduser().resolve())
    return uri.rstrip("/")


def enable_change_feed(uri: str) -> None:
    """Set `delta.enableChangeDataFeed` on a table; changes are recorded from the next commit on."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(uri, storage_options=storage_options_from_env(uri) or None)
        table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    except (DeltaError, OSError, ValueError) as error:
        raise TableUnreadable(
            f"the change data feed of {uri} can't be turned on: {one_line(error)}",
            cure="set the table property delta.enableChangeDataFeed=true with the table's engine",
        ) from error

"""Opening Lance datasets, on local disk and in object stores.

Lance keeps threads that don't survive a fork, so it is imported late. A *session* is where Lance
keeps what it has read of datasets: their files never change, so it stays true.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from iscp_dagster.sources.storage import local_path, provider_of, storage_options_from_env

if TYPE_CHECKING:
    from lance import LanceDataset

_INDEX_BYTES, _METADATA_BYTES = 512 * 1024**2, 128 * 1024**2
"""How much of what was read stays in memory for the next question."""


def open_dataset(
    uri: str,
    version: int | None = None,
    options: Mapping[str, str] | None = None,
    session: Any = None,
) -> LanceDataset | None:
    """Open the dataset at a uri; None when there is none, or not that version.

    Args:
        uri: Where it is.
        version: Which one; the newest by default.
        options: Storage options, in a process whose environment does not hold them.
        session: Where Lance keeps what it read, for those who open the dataset again and again.
    """
    if provider_of(uri) == "local" and not local_path(uri).exists():
        return None  # a first sync asks this before Spark has started: don't import Lance for it
    import lance

    settings = dict(options) if options else storage_options(uri)
    try:
        return lance.dataset(
            dataset_uri(uri), version=version, storage_options=settings, session=session
        )
    except ValueError as error:
        if "not found" in str(error).lower():
            return None
        raise


def dataset_uri(uri: str) -> str:
    """Return a uri as Lance reads it."""
    if provider_of(uri) == "local":
        return str(local_path(uri))
    return "s3://" + uri.split("://", 1)[1] if uri.lower().startswith("s3a://") else uri


def storage_options(uri: str) -> dict[str, str] | None:
    """Return the storage options of a uri, None on local disk."""
    return storage_options_from_env(uri) or None


@cache
def reading_session() -> Any:
    """Return the session that all searches of this process share."""
    import lance

    return lance.Session(  # pyright: ignore[reportPrivateImportUsage]
        index_cache_size_bytes=_INDEX_BYTES, metadata_cache_size_bytes=_METADATA_BYTES
    )

"""Asking a Lance index: full-text by words, vector by a vector or by a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from iscp_dagster.errors import BuildMismatch, UsageError
from iscp_dagster.search.result import Answer
from iscp_dagster.stores.lance_index import KEY
from iscp_dagster.stores.lance_search import SCORE, LanceReader

if TYPE_CHECKING:
    import pyarrow as pa


def find_text(
    reader: LanceReader, query: str | None, k: int, where: str | None, columns: Sequence[str] | None
) -> Answer:
    """Return the k rows whose texts match best."""
    if not query:
        raise UsageError("query: missing", cure="say which words to look for")
    return _answer(reader, reader.text_search(query, k, where=where, columns=columns))


def find_near(
    reader: LanceReader,
    query: str | None,
    vector: Sequence[float] | None,
    k: int,
    where: str | None,
    columns: Sequence[str] | None,
) -> Answer:
    """Return the k rows whose vectors are nearest to a vector, or to that of a text."""
    if (query is None) == (vector is None):
        raise UsageError("query: give either a text or a vector", cure="one of them, not both")
    wanted = embed(reader, query) if vector is None and query is not None else vector or ()
    return _answer(reader, reader.vector_search(wanted, k, where=where, columns=columns))


def embed(reader: LanceReader, text: str) -> list[float]:
    """Turn a text into a vector by the embedder that the index was made with."""
    from iscp_dagster.embedders.registry import get_embedder

    recorded = reader.build["embedder"]
    if recorded is None:
        (column,) = reader.build["content"]
        raise UsageError(
            f"query: the vectors come from column {column!r}, no text can be compared with them",
            cure="search by a vector",
        )
    embedder = get_embedder(recorded["name"])
    if embedder.version != recorded["version"]:
        raise BuildMismatch(
            f"the index was embedded by {recorded['name']} {recorded['version']}, "
            f"installed is {embedder.version}"
        )
    return embedder.embed([text])[0].tolist()


def _answer(reader: LanceReader, found: pa.Table) -> Answer:
    return Answer(
        found.drop_columns([KEY, SCORE]),
        found[SCORE],
        tuple(reader.build["key"]),
        reader.watermark,
        reader.version,
    )

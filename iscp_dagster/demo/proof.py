"""The proof: each of the demo's indexes, row by row, against what the table itself says.

The table is read by another engine than the one that built the indexes, and embedded anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iscp_dagster.demo.library import EMBEDDER, JOBS

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Proof:
    """How an index compares with a build from scratch."""

    rows: int
    """How many the index has."""
    same: bool


def prove(uri: Path, places: dict[str, str]) -> dict[str, Proof]:
    """Compare each index, found at its place, with the table."""
    return {job: _compare(_READERS[job](places[job]), _EXPECTED[job](str(uri))) for job in JOBS}


def _compare(found: Rows, expected: Rows) -> Proof:
    return Proof(len(found), sorted(found) == sorted(expected))


def _by_sql(query: str) -> Callable[[str], Rows]:
    def read(uri: str) -> Rows:
        import pyarrow as pa
        from deltalake import DeltaTable, QueryBuilder

        batches = QueryBuilder().register("rows", DeltaTable(uri)).execute(query).read_all()
        return [tuple(row.values()) for row in pa.table(batches).to_pylist()]

    return read


def _read_words(uri: str) -> Rows:
    from iscp_dagster.stores.lance_search import LanceReader

    rows = LanceReader.open(uri).table(["name", "module", "doc"]).to_pylist()
    return [(row["name"], row["module"], row["doc"]) for row in rows]


def _read_vectors(uri: str) -> Rows:
    import numpy as np

    from iscp_dagster.consumers.lance_rows import VECTOR
    from iscp_dagster.stores.lance_index import CONTROL
    from iscp_dagster.stores.lance_search import LanceReader

    reader = LanceReader.open(uri)
    name = reader.stored["name"]
    rows = reader.dataset.to_table(columns=[name, VECTOR], filter=f"{CONTROL} IS NULL").to_pylist()
    return [(row[name], np.asarray(row[VECTOR], np.float32).tobytes()) for row in rows]


def _embed(uri: str) -> Rows:
    from iscp_dagster.embedders.registry import get_embedder

    rows = _by_sql("select name, doc from rows")(uri)
    vectors = get_embedder(EMBEDDER).embed([doc for _, doc in rows])
    return [(name, vector.tobytes()) for (name, _), vector in zip(rows, vectors, strict=True)]


_READERS: dict[str, Callable[[str], Rows]] = {
    "words": _read_words,
    "meaning": _read_vectors,
    "by_module": _by_sql("select name, module, kind, signature from rows"),
    "per_module": _by_sql("select module, count, sum_doc_chars, max_doc_chars from rows"),
}
_EXPECTED: dict[str, Callable[[str], Rows]] = {
    "words": _by_sql("select name, module, doc from rows"),
    "meaning": _embed,
    "by_module": _by_sql("select name, module, kind, signature from rows"),
    "per_module": _by_sql(
        "select module, count(*), sum(doc_chars), max(doc_chars) from rows group by module"
    ),
}

"""What searches of a library have to answer, worked out from the table's rows alone."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from iscp_dagster.embedders.registry import get_embedder

Row = Mapping[str, Any]


def matching(rows: Sequence[Row], words: str) -> set[tuple[str, int]]:
    """The keys of the rows with any of these words in their titles."""
    wanted = set(words.split())
    return {_key(row) for row in rows if wanted & set(_words(row["Title"]))}


def nearest(rows: Sequence[Row], vector: Sequence[float], k: int) -> list[float]:
    """Minus the distances of the k rows whose vectors are nearest."""
    distances = [math.dist(row["vec"], vector) for row in rows if row["vec"] is not None]
    return [-distance for distance in sorted(distances)[:k]]


def alike(rows: Sequence[Row], text: str, k: int) -> list[float]:
    """The cosines of the k titles that are nearest to a text."""
    embedder = get_embedder("wordllama")
    titles = [row["Title"] for row in rows if row["Title"] and row["id"] != 22]
    if not titles:
        return []
    vectors, wanted = embedder.embed(titles), embedder.embed([text])[0]
    lengths = (vectors**2).sum(axis=1) ** 0.5 * (wanted**2).sum() ** 0.5
    return sorted((vectors @ wanted / lengths).tolist(), reverse=True)[:k]


def looked_up(rows: Sequence[Row], k: int) -> list[tuple[Any, ...]]:
    """The first k rows of the lookup, by section."""
    ordered = sorted(rows, key=lambda row: (row["section"] or "", row["region"], row["id"]))
    ordered.sort(key=lambda row: row["section"] is not None)
    return [(*_key(row), row["Title"], row["size"], row["price"]) for row in ordered[:k]]


def summed(rows: Sequence[Row]) -> dict[str | None, tuple[Any, ...]]:
    """The aggregate: by section count, sum, least and greatest price, and how many titles."""
    groups: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        if row["id"] != 23:
            groups[row["section"]].append(row)
    return {
        section: (
            len(group),
            sum(row["size"] for row in group),
            min(row["price"] for row in group),
            max(row["price"] for row in group),
            sum(row["Title"] is not None for row in group),
        )
        for section, group in groups.items()
    }


def _key(row: Row) -> tuple[str, int]:
    return row["region"], row["id"]


def _words(title: str | None) -> list[str]:
    return re.findall(r"\w[\w']*", (title or "").lower())

"""What a search answers: hits, and the point in the table's history at which they are true.

A *hit* is a row of the index. A *ranked* hit has a `score`, the higher the better. A column of the
table that is itself called `score`, or `key` without being part of the key, is returned with a `_`
behind its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iscp_dagster.rules.model import TS

if TYPE_CHECKING:
    import pyarrow as pa

SCORE = "score"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Hits, best first, and when they are true."""

    table: pa.Table
    """The key's columns, `score` if the hits are ranked, then the others."""
    key: tuple[str, ...]
    """Which columns of `table` are the key."""
    watermark: TS
    """The point in the table's history at which the hits are true, as the store itself says."""
    store_versions: Mapping[str, int]
    """The version of each index's own store that was asked, by the job's name."""
    lag_seconds: float | None
    """The age of the oldest change that the hits don't reflect; None where it can't be told."""
    fresh: bool = False
    """Whether changes that the index does not hold yet are in the hits."""
    error: str | None = None
    """Why the index does not follow its table any more."""

    @property
    def store_version(self) -> int:
        """The version of the store that was asked; of the first one where there are several."""
        return next(iter(self.store_versions.values()))

    @property
    def version(self) -> int:
        """The table's version at which the hits are true."""
        return self.watermark.version

    def hits(self) -> list[dict[str, Any]]:
        """Return the hits as `{key: {…}, score, …columns}`; `score` is None without a ranking."""
        return [self._hit(row) for row in self.table.to_pylist()]

    def _hit(self, row: Mapping[str, Any]) -> dict[str, Any]:
        others = {name: value for name, value in row.items() if name not in self.key}
        score = others.pop(SCORE, None)
        return {"key": {name: row[name] for name in self.key}, "score": score, **others}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a store answers, under the table's names; the score apart."""

    rows: pa.Table
    score: pa.ChunkedArray | None
    key: tuple[str, ...]
    watermark: TS
    store_version: int

    def table(self) -> tuple[pa.Table, tuple[str, ...]]:
        """Return the hits as one table, and what the key's columns are called in it."""
        import pyarrow as pa

        names = {name: _free_name(name, self.key) for name in self.rows.column_names}
        others = [name for name in self.rows.column_names if name not in self.key]
        columns = {names[name]: self.rows[name] for name in self.key}
        if self.score is not None:
            columns[SCORE] = self.score
        columns |= {names[name]: self.rows[name] for name in others}
        return pa.table(columns), tuple(names[name] for name in self.key)


def _free_name(name: str, key: Sequence[str]) -> str:
    taken = name == SCORE or (name == "key" and name not in key)
    return f"{name}_" if taken else name

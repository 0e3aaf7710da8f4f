"""Asking a Lance index: pinned to one version, true at one watermark, without Spark.

A *reader* is an index at one version of its dataset. Iterations, compaction and merges go on
meanwhile and change nothing for it, as long as cleanup keeps its version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

from iscp_dagster.errors import IndexBuilding, IndexMissing, IndexUnreadable, UsageError
from iscp_dagster.rules.model import TS
from iscp_dagster.stores.lance_index import CONTROL, KEY, LanceStanding, read_control
from iscp_dagster.stores.lance_keys import canonical_keys
from iscp_dagster.stores.lance_open import open_dataset, reading_session
from iscp_dagster.stores.lance_query import parse_query, render_where, to_lance
from iscp_dagster.stores.lance_segments import TextRecipe, VectorRecipe, read_recipes

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset

SCORE = "_score"
"""The column that ranks: BM25, cosine similarity, dot product, or minus the distance."""
_DISTANCE = "_distance"
_CANDIDATES = 100
"""How many rounded vectors at least are compared exactly before the nearest are named."""
_FEW = 1000


@dataclass(frozen=True, slots=True)
class LanceReader:
    """An index at one version."""

    dataset: LanceDataset
    standing: LanceStanding

    @staticmethod
    def open(uri: str, version: int | None = None) -> LanceReader:
        """Open an index at a version; the newest by default."""
        dataset = open_dataset(uri, version, session=reading_session())
        standing = None if dataset is None else read_control(dataset)
        if dataset is None or standing is None:
            at = "" if version is None else f" at version {version}"
            raise IndexMissing(f"there is no index at {uri}{at}")
        if standing.watermark.is_zero:
            raise IndexBuilding(f"the index at {uri} is still building")
        return LanceReader(dataset, standing)

    @property
    def watermark(self) -> TS:
        """The point in the table's history at which the answers are true."""
        return self.standing.watermark

    @property
    def version(self) -> int:
        """The dataset's version that this reader is pinned to."""
        return self.standing.version

    @property
    def rows(self) -> int:
        """How many rows the index has."""
        return self.standing.rows

    @property
    def build(self) -> Mapping[str, Any]:
        """What the index is built from."""
        return self.standing.build

    @property
    def stored(self) -> Mapping[str, str]:
        """The table's columns that the index holds, with the names it holds them under."""
        return self.build["stored"]

    def text_search(
        self,
        query: str,
        k: int = 10,
        *,
        where: str | None = None,
        all_words: bool = False,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the k rows that match best, by BM25.

        Args:
            query: Words, `"phrases"`, `+must`, `-not`, `fuzzy~1`.
            k: How many rows.
            where: A filter over the stored columns; applied before ranking.
            all_words: Every word must occur.
            columns: The stored columns to return beside the key; all by default.

        Raises:
            UsageError: The index has no text, or the query or the filter can't be read.
        """
        recipes = [one for one in self._recipes if isinstance(one, TextRecipe)]
        if not recipes:
            raise UsageError("query: this index has no text", cure="search it by vector")
        recipes[0].ready()
        weights = {one.column: self.build["weights"][one.column] for one in recipes}
        wanted = to_lance(parse_query(query, all_words=all_words), weights)
        found = self._ask(
            {"full_text_query": wanted, "limit": k},
            self._select(columns, SCORE),
            self._where(where),
        )
        return self._ranked(found)

    def vector_search(
        self,
        vector: Sequence[float],
        k: int = 10,
        *,
        where: str | None = None,
        exact: bool = False,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the k rows whose vectors are nearest.

        Args:
            vector: What to be near to; of the index's dimension.
            k: How many rows.
            where: A filter over the stored columns; applied before ranking.
            exact: Compare with every vector, whatever it takes.
            columns: The stored columns to return beside the key; all by default.

        Raises:
            UsageError: The index has no vectors, or the vector or the filter does not fit.
        """
        recipe = next((one for one in self._recipes if isinstance(one, VectorRecipe)), None)
        if recipe is None:
            raise UsageError("vector: this index has no vectors", cure="search it by text")
        if recipe.column not in self.dataset.schema.names:
            return self._nothing(columns)
        nearest = {
            "column": recipe.column,
            "q": self._checked(vector, recipe),
            "k": k,
            "metric": recipe.metric,
            "use_index": not exact,
            "refine_factor": max(4, ceil(_CANDIDATES / k)),
        }
        found = self._ask(
            {"nearest": nearest}, self._select(columns, _DISTANCE), self._where(where)
        )
        return self._ranked(_scored(found, recipe.metric))

    def recall(self, queries: int = 20, k: int = 10, seed: int = 0) -> float:
        """Return the share of the true nearest that a search names, for vectors of its own.

        Args:
            queries: How many of the index's vectors to search by.
            k: How many neighbours each.
            seed: Picks the vectors.
        """
        import random

        (column,) = (one.column for one in self._recipes if isinstance(one, VectorRecipe))
        if column not in self.dataset.schema.names or not self.rows:
            return 1.0
        picks = random.Random(seed).sample(range(self.rows + 1), min(queries, self.rows))
        picked = self.dataset.take(sorted(picks), columns=[column])[column].to_pylist()
        found = expected = 0
        for vector in picked:
            if vector is None:  # the control row
                continue
            true = set(self.vector_search(vector, k, exact=True, columns=())[KEY].to_pylist())
            named = set(self.vector_search(vector, k, columns=())[KEY].to_pylist())
            expected += len(true)
            found += len(true & named)
        return found / expected if expected else 1.0

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows: `_pk` and the stored columns, under the table's names."""
        wanted = [KEY, *self._select(columns)]
        return self._named(self.dataset.to_table(columns=wanted, filter=f"{CONTROL} IS NULL"))

    @property
    def _recipes(self) -> tuple[Any, ...]:
        return read_recipes(self.build["recipes"])

    def _select(self, columns: Sequence[str] | None, *more: str) -> list[str]:
        wanted = list(self.stored) if columns is None else [*self.build["key"], *columns]
        for name in wanted:
            if name not in self.stored:
                known = ", ".join(self.stored)
                raise UsageError(f"columns: the index has no {name!r}", cure=f"it has {known}")
        return [*dict.fromkeys(self.stored[name] for name in wanted), *more]

    def _where(self, text: str | None) -> str | None:
        return None if text is None else render_where(text, self.stored)

    def _ask(self, what: Mapping[str, Any], columns: list[str], where: str | None) -> pa.Table:
        # The control row is never found: it has neither text nor vector.
        try:
            scanner = self.dataset.scanner(
                columns=columns,
                filter=where,
                prefilter=True,
                disable_scoring_autoprojection=True,
                **what,
            )
            return scanner.to_table()
        except ValueError as error:
            reason = str(error).split(", /", 1)[0].removeprefix("Invalid user input: ")
            if "LanceError(IO)" in reason:
                raise IndexUnreadable(f"the index can't be read ({reason})") from error
            raise UsageError(f"query: the index can't answer it ({reason})") from error

    def _checked(self, vector: Sequence[float], recipe: VectorRecipe) -> list[float]:
        values = [float(value) for value in vector]
        dimension = self.dataset.schema.field(recipe.column).type.list_size
        if len(values) != dimension:
            raise UsageError(f"vector: has {len(values)} numbers, the index has {dimension}")
        if not all(map(isfinite, values)):
            raise UsageError("vector: NaN and infinity are near to nothing")
        return values

    def _named(self, found: pa.Table) -> pa.Table:
        """Give columns the table's names."""
        names = {stored: name for name, stored in self.stored.items()}
        return found.rename_columns([names.get(name, name) for name in found.column_names])

    def _ranked(self, found: pa.Table) -> pa.Table:
        """Return hits with their keys, in an order that is the same every time."""
        named = self._named(found)
        # The key says it all: reading one more column of each hit would take longer.
        keys = canonical_keys([named[name] for name in self.build["key"]])
        return _ordered(named.add_column(0, KEY, keys))

    def _nothing(self, columns: Sequence[str] | None) -> pa.Table:
        import pyarrow as pa

        empty = self.dataset.schema.empty_table().select(self._select(columns))
        return self._ranked(empty.append_column(SCORE, pa.array([], pa.float32())))


def _ordered(found: pa.Table) -> pa.Table:
    """Order hits by score, those of one score by key.

    Lance has the scores in order already. A few hits are looked at faster here than by Arrow's
    threads.
    """
    scores = found[SCORE].to_pylist()
    if all(one > other for one, other in pairwise(scores)):
        return found
    if len(scores) > _FEW:
        return found.sort_by([(SCORE, "descending"), (KEY, "ascending")])
    keys = found[KEY].to_pylist()
    return found.take(sorted(range(len(scores)), key=lambda row: (-scores[row], keys[row])))


def _scored(found: pa.Table, metric: str) -> pa.Table:
    """Turn Lance's distance into a score that is higher the nearer a row is."""
    import numpy as np
    import pyarrow as pa

    distance = found[_DISTANCE].to_numpy()
    # Lance leaves out the root, and gives one minus the others.
    score = -np.sqrt(np.maximum(distance, 0)) if metric == "l2" else 1 - distance
    return found.drop_columns([_DISTANCE]).append_column(SCORE, pa.array(score, pa.float32()))

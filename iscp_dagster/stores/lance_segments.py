"""What makes a Lance index answer fast: inverted and vector indexes over its columns.

A *recipe* says how a column is indexed; it is part of what the index is built from. A *segment* is
the part of such an index that covers some of the rows. After each window the new rows get a segment
of their own, a *delta*; past `MAX_SEGMENTS` they become one again. Rows without a segment are still
found, by looking at each of them: a window is searchable from its commit on, and a crash before its
segment costs speed, never rows.

Deleted rows stay in a text segment's statistics until it is built anew, and weigh on the scores; so
a text index is *renewed* once such rows are more than `MAX_STALE` of it. Segments of a vector index
round their vectors by the range of values that the first one saw, and vectors outside of it become
all alike. So a vector index is trained anew once it has *outgrown* what it learned, and rather than
merged, unless that costs too much. Searches rank by the exact vectors in any case.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from iscp_dagster.stores.lance_index import KEY, control_fragment, is_conflict
from iscp_dagster.stores.lance_jieba import TOKENIZER, ready_jieba

if TYPE_CHECKING:
    from lance import LanceDataset

# Otherwise Lance reads all centroids to count rows, and warns that it does.
os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")

MAX_SEGMENTS = 8
MAX_STALE = 0.1
FLAT_BELOW = 20_000
"""A vector index of fewer rows has no segments: looking at every vector is exact, and fast."""
RETRAIN_BELOW = 2_000_000
"""Up to so many rows, training a vector index anew is cheap enough to do it at every merge."""
OUTGROWN = 0.5
"""With so many new vectors for each one that is indexed, an index no longer knows their range."""
KEY_INDEX_FROM = 2_000_000
"""From so many rows on, keys are looked up in an index of their own."""


@dataclass(frozen=True, slots=True)
class TextRecipe:
    """An inverted index over a text column: how its texts become words."""

    column: str
    tokenizer: str = "icu"
    language: str = "English"
    stem: bool = False
    stop_words: bool = False
    fold: bool = True
    """Whether accents are dropped: `café` is found as `cafe`."""
    positions: bool = True
    """Whether word positions are kept; phrases need them."""
    ngram_min: int = 3
    ngram_max: int = 3
    lance_type: ClassVar[Any] = "INVERTED"

    @property
    def name(self) -> str:
        """The name of the Lance index."""
        return f"{self.column}_fts"

    def ready(self) -> None:
        """Let this process find the tokenizer's dictionary, where it needs one."""
        if self.tokenizer == TOKENIZER:
            ready_jieba()

    @property
    def options(self) -> dict[str, Any]:
        """How Lance is told of this recipe."""
        ngram: dict[str, Any] = {}
        if self.tokenizer == "ngram":
            ngram = {"min_ngram_length": self.ngram_min, "max_ngram_length": self.ngram_max}
        return {
            "base_tokenizer": self.tokenizer,
            "language": self.language,
            "stem": self.stem,
            "remove_stop_words": self.stop_words,
            "ascii_folding": self.fold,
            "with_position": self.positions,
            **ngram,
        }

    def build(self, dataset: LanceDataset) -> None:
        """Index all rows, in place of what there is."""
        dataset.create_scalar_index(
            self.column, self.lance_type, name=self.name, replace=True, **self.options
        )

    def wanted(self, rows: int) -> bool:
        """Always: without an index, Lance would cut texts into words its own way."""
        return True

    def worn(self, dataset: LanceDataset) -> bool:
        """Whether too many of the indexed texts are gone."""
        found = dataset.stats.index_stats(self.name)
        documents = sum(one.get("num_docs", 0) for one in found["segments"])
        return documents - found["num_indexed_rows"] > MAX_STALE * found["num_indexed_rows"]

    def outgrown(self, dataset: LanceDataset) -> bool:
        """Words need no training."""
        return False

    def renew_on_merge(self, rows: int) -> bool:
        """Merging is as good as building anew, as long as nothing is worn."""
        return False


@dataclass(frozen=True, slots=True)
class VectorRecipe:
    """An index of nearest neighbours over a vector column."""

    column: str
    metric: str = "l2"
    flat_below: int = FLAT_BELOW
    lance_type: ClassVar[Any] = "IVF_SQ"

    @property
    def name(self) -> str:
        """The name of the Lance index."""
        return f"{self.column}_ann"

    @property
    def options(self) -> dict[str, Any]:
        """How Lance is told of this recipe."""
        return {"metric": self.metric}

    def ready(self) -> None:
        """Nothing is needed."""

    def build(self, dataset: LanceDataset) -> None:
        """Train on the rows there are, and index all of them."""
        dataset.create_index(
            self.column, self.lance_type, name=self.name, replace=True, **self.options
        )

    def wanted(self, rows: int) -> bool:
        """Above some size only; an index that is there stays."""
        return rows >= self.flat_below

    def worn(self, dataset: LanceDataset) -> bool:
        """Deleted vectors weigh on nothing."""
        return False

    def outgrown(self, dataset: LanceDataset) -> bool:
        """Whether the new vectors are too many for what was learned from the old ones."""
        found = dataset.stats.index_stats(self.name)
        return found["num_unindexed_rows"] > OUTGROWN * found["num_indexed_rows"]

    def renew_on_merge(self, rows: int) -> bool:
        """Vectors move on, and training anew follows them."""
        return rows < RETRAIN_BELOW


@dataclass(frozen=True, slots=True)
class KeyRecipe:
    """An index of the keys themselves: a small window on a huge index reads only a little."""

    column: str = KEY
    index_from: int = KEY_INDEX_FROM
    lance_type: ClassVar[Any] = "BTREE"

    @property
    def name(self) -> str:
        """The name of the Lance index."""
        return f"{self.column}_keys"

    @property
    def options(self) -> dict[str, Any]:
        """How Lance is told of this recipe."""
        return {}

    def ready(self) -> None:
        """Nothing is needed."""

    def build(self, dataset: LanceDataset) -> None:
        """Index all rows, in place of what there is."""
        dataset.create_scalar_index(self.column, self.lance_type, name=self.name, replace=True)

    def wanted(self, rows: int) -> bool:
        """Above some size only."""
        return rows >= self.index_from

    def worn(self, dataset: LanceDataset) -> bool:
        """Deleted keys weigh on nothing."""
        return False

    def outgrown(self, dataset: LanceDataset) -> bool:
        """Keys need no training."""
        return False

    def renew_on_merge(self, rows: int) -> bool:
        """Merging is as good."""
        return False


Recipe = TextRecipe | VectorRecipe | KeyRecipe
_KINDS: dict[str, type[Recipe]] = {"text": TextRecipe, "vector": VectorRecipe, "key": KeyRecipe}


def write_recipes(recipes: Sequence[Recipe]) -> list[dict[str, Any]]:
    """Write recipes down as JSON takes them."""
    names = {kind: name for name, kind in _KINDS.items()}
    return [{"kind": names[type(one)], **asdict(one)} for one in recipes]


def read_recipes(written: Sequence[Mapping[str, Any]]) -> tuple[Recipe, ...]:
    """Read recipes that `write_recipes` wrote."""
    return tuple(
        _KINDS[one["kind"]](**{name: value for name, value in one.items() if name != "kind"})
        for one in written
    )


def keep_indexed(dataset: LanceDataset, recipes: Sequence[Recipe]) -> None:
    """Give rows without a segment one, and merge segments where there are too many.

    Meant to be called after every window. Loses to whoever rewrites the same fragments, without
    harm: the next call finds what is left to do.
    """
    rows = dataset.count_rows()
    for recipe in recipes:
        recipe.ready()
        try:
            _keep_one(dataset, recipe, rows)
        except OSError as error:
            if not is_conflict(error):
                raise
            dataset.checkout_latest()


def segments_of(dataset: LanceDataset, recipe: Recipe) -> int:
    """Return how many segments an index has."""
    return sum(len(one.segments) for one in _described(dataset, recipe))


def _keep_one(dataset: LanceDataset, recipe: Recipe, rows: int) -> None:
    covered = _covered(dataset, recipe)
    if covered is None:
        if recipe.wanted(rows):
            recipe.build(dataset)
        return
    # The control row's fragment changes with every window and holds nothing to be found.
    there = {one.fragment_id for one in dataset.get_fragments()} - {control_fragment(dataset)}
    snapshot = bool(there) and not covered & there  # every row that was indexed is gone
    if snapshot or recipe.worn(dataset) or recipe.outgrown(dataset):
        recipe.build(dataset)
        return
    if there - covered:
        dataset.optimize.optimize_indices(num_indices_to_merge=0, index_names=[recipe.name])
    if (count := segments_of(dataset, recipe)) > MAX_SEGMENTS:
        if recipe.renew_on_merge(rows):
            recipe.build(dataset)
        else:
            dataset.optimize.optimize_indices(num_indices_to_merge=count, index_names=[recipe.name])


def _covered(dataset: LanceDataset, recipe: Recipe) -> set[int] | None:
    """The fragments that an index covers; None when there is no such index."""
    found = _described(dataset, recipe)
    if not found:
        return None
    return {number for one in found for part in one.segments for number in part.fragment_ids}


def _described(dataset: LanceDataset, recipe: Recipe) -> list[Any]:
    return [one for one in dataset.describe_indices() if one.name == recipe.name]

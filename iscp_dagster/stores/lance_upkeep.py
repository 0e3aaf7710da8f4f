"""Maintenance of a Lance index, while readers and iterations go on.

*Compaction* rewrites small fragments and those with many deleted rows; it leaves the control row's
fragment alone, so it never stands in the way of a window that touches other rows. Whoever commits
second on the same rows loses: a window tries again from its staged files, maintenance gives up and
says so. *Cleanup* removes versions and files that nobody reads any more, and keeps those of the
last hours for the queries that still do.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from iscp_dagster.errors import IndexMissing
from iscp_dagster.stores.lance_index import LanceIndex, control_fragment, is_conflict, open_dataset
from iscp_dagster.stores.lance_segments import keep_indexed, read_recipes, segments_of

if TYPE_CHECKING:
    from lance import LanceDataset

KEEP_VERSIONS = timedelta(hours=6)
"""How long an old version stays readable: longer than any query takes."""
_SHORTEST = timedelta(minutes=1)
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Optimized:
    """What maintenance did."""

    version: int
    fragments_before: int
    fragments_after: int
    segments_before: int
    segments_after: int
    contended: bool = False
    """Windows kept coming in between; what is left goes to the next time."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What cleanup removed."""

    versions: int
    bytes: int


def optimize(index: LanceIndex, *, retrain: bool = False) -> Optimized:
    """Compact fragments and make one segment of each index; an index that is tidy is left alone.

    Args:
        index: Which one.
        retrain: Build each index anew from its rows: text statistics without deleted rows,
            centroids that fit the vectors of today.

    Raises:
        IndexMissing: There is none.
    """
    dataset = _open(index)
    recipes = read_recipes(index.standing_of(dataset).build["recipes"])
    fragments, segments = _count(dataset, recipes)
    contended = not _unless_contended(dataset, _compact)
    for recipe in recipes:
        if segments_of(dataset, recipe) == 0:
            continue
        recipe.ready()

        def as_one(dataset: LanceDataset, recipe=recipe) -> None:
            count = segments_of(dataset, recipe)
            if retrain or recipe.worn(dataset):
                recipe.build(dataset)
            elif count > 1:
                if recipe.renew_on_merge(dataset.count_rows()):
                    recipe.build(dataset)
                else:
                    dataset.optimize.optimize_indices(
                        num_indices_to_merge=count, index_names=[recipe.name]
                    )

        contended |= not _unless_contended(dataset, as_one)
    keep_indexed(dataset, recipes)
    after = _count(dataset, recipes)
    return Optimized(dataset.version, fragments, after[0], segments, after[1], contended)


def clean(index: LanceIndex, keep: timedelta = KEEP_VERSIONS) -> Cleaned:
    """Remove versions older than `keep`, and the files that only they use.

    Files of a writer that may still be at work are left alone for a week.

    Raises:
        IndexMissing: There is no index.
    """
    if keep < _SHORTEST:
        raise ValueError("versions younger than a minute may still be read")
    done = _open(index).cleanup_old_versions(older_than=keep)
    return Cleaned(done.old_versions, done.bytes_removed)


def _compact(dataset: LanceDataset) -> None:
    control = control_fragment(dataset)
    excluded = [] if control is None else [control]
    dataset.optimize.compact_files(excluded_fragment_ids=excluded)


def _unless_contended(dataset: LanceDataset, work) -> bool:
    """Do the work on the newest version; whether it got through between the windows."""
    for _ in range(_TRIES):
        dataset.checkout_latest()
        try:
            work(dataset)
        except OSError as error:
            if not is_conflict(error):
                raise
        else:
            return True
    dataset.checkout_latest()
    return False


def _open(index: LanceIndex) -> LanceDataset:
    dataset = open_dataset(index.uri)
    if dataset is None:
        raise IndexMissing(f"there is no index at {index.uri}")
    return dataset


def _count(dataset: LanceDataset, recipes) -> tuple[int, int]:
    return len(dataset.get_fragments()), sum(segments_of(dataset, one) for one in recipes)

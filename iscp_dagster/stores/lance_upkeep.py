"""Maintenance of a Lance index, while readers and iterations go on.

*Compaction* rewrites small fragments and those with many deleted rows; it leaves the control row's
fragment alone, so it never stands in the way of a window that touches other rows. Whoever commits
second on the same rows loses: a window tries again from its staged files, maintenance gives up and
says so. An index that is built anew is built *aside*: over the rows of one version, in files that
no version names yet, and put in place of the segments that it covers. What windows bring meanwhile
keeps the segments they came with, so no training is lost to them. *Cleanup* removes versions and
files that nobody reads any more, and keeps those of the last hours for the queries that still do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import TYPE_CHECKING

from iscp_dagster.errors import IndexMissing
from iscp_dagster.stores.lance_index import LanceIndex, control_fragment, is_conflict, open_dataset
from iscp_dagster.stores.lance_segments import (
    Recipe,
    keep_indexed,
    read_recipes,
    segments_of,
)

if TYPE_CHECKING:
    from lance import LanceDataset

KEEP_VERSIONS = timedelta(hours=6)
"""How long an old version stays readable: longer than any query takes."""
Tell = Callable[[str], None]
_SHORTEST = timedelta(minutes=1)
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """What a version of an index consists of."""

    fragments: int
    segments: int
    bytes: int
    """The size of the files that the version uses."""


@dataclass(frozen=True, slots=True)
class Optimized:
    """What maintenance did."""

    version: int
    before: Shape
    after: Shape
    seconds: float
    contended: bool = False
    """Windows kept coming in between; what is left goes to the next time."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What cleanup removed."""

    versions: int
    bytes: int


def optimize(
    index: LanceIndex, *, retrain: bool = False, tell: Tell = lambda step: None
) -> Optimized:
    """Compact fragments and make one segment of each index; an index that is tidy is left alone.

    Args:
        index: Which one.
        retrain: Build each index anew from its rows: text statistics without deleted rows,
            centroids that fit the vectors of today.
        tell: Called with what comes next, before each step.

    Raises:
        IndexMissing: There is none.
    """
    started = perf_counter()
    dataset = _open(index)
    recipes = read_recipes(index.standing_of(dataset).build["recipes"])
    before = _shape(dataset, recipes)
    contended = False
    for recipe in recipes:
        count = segments_of(dataset, recipe)
        if count == 0:
            continue
        recipe.ready()
        if retrain or recipe.worn(dataset):
            contended |= not _build_aside(dataset, recipe, tell)
        elif count > 1:
            contended |= not _merge(dataset, recipe, tell)
    # Fragments of different segments are never put together, so this comes second.
    tell("compacting fragments")
    contended |= not _unless_contended(dataset, _compact)
    dataset.checkout_latest()
    keep_indexed(dataset, recipes)
    after = _shape(dataset, recipes)
    return Optimized(dataset.version, before, after, perf_counter() - started, contended)


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


def _merge(dataset: LanceDataset, recipe: Recipe, tell: Tell) -> bool:
    """Make one segment of many; whether it got through."""
    if recipe.renew_on_merge(dataset.count_rows()):
        return _build_aside(dataset, recipe, tell)

    def merge(dataset: LanceDataset) -> None:
        count = segments_of(dataset, recipe)
        dataset.optimize.optimize_indices(num_indices_to_merge=count, index_names=[recipe.name])

    # A window that adds its segment meanwhile makes a merge lose, but not what is built aside.
    tell(f"merging the segments of {recipe.name}")
    return _unless_contended(dataset, merge) or _build_aside(dataset, recipe, tell)


def _build_aside(dataset: LanceDataset, recipe: Recipe, tell: Tell) -> bool:
    """Build an index over the rows there are now, then put it in place; whether it got through."""
    for _ in range(_TRIES):
        dataset.checkout_latest()
        fragments = [one.fragment_id for one in dataset.get_fragments()]
        if len(fragments) < 2:
            return True  # the control row alone: nothing to learn from
        tell(f"building {recipe.name} anew")
        segment = dataset.create_index_uncommitted(
            recipe.column,
            recipe.lance_type,
            name=recipe.name,
            replace=True,
            fragment_ids=fragments,
            **recipe.options,
        )
        tell(f"putting {recipe.name} in place")

        def put(dataset: LanceDataset, segment=segment) -> None:
            dataset.commit_existing_index_segments(recipe.name, recipe.column, [segment])

        try:
            return _unless_contended(dataset, put)
        except ValueError as error:
            # Somebody made one segment of these rows and newer ones, which this one lacks.
            if "would orphan" not in str(error):
                raise
    return False


def _unless_contended(dataset: LanceDataset, work: Callable[[LanceDataset], None]) -> bool:
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


def _shape(dataset: LanceDataset, recipes: Sequence[Recipe]) -> Shape:
    fragments = [one.metadata for one in dataset.get_fragments()]
    data = sum(file.file_size_bytes or 0 for one in fragments for file in one.files)
    indexes = sum(one.total_size_bytes or 0 for one in dataset.describe_indices())
    return Shape(len(fragments), sum(segments_of(dataset, one) for one in recipes), data + indexes)

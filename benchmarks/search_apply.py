"""One window into a full-text index, against the same batch given to Lance by hand.

The *scan* is Spark's: it reads the change feed and works out what changed. The *store's part* is
all that comes after it, from the changes in Spark's memory to an index that is searchable at its
new watermark; the rows' way from Spark to the files is in it. By hand, the same batch is in memory
as Arrow and goes through Lance's own merge, delete and optimize.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import pyarrow as pa

from benchmarks.search_packages import OTHERS, TEXT, Home, Releases
from iscp_dagster.consumers.base import ConsumerResult
from iscp_dagster.consumers.lance_base import LanceConsumer
from iscp_dagster.embedders.wordllama import WordLlama
from iscp_dagster.rules.model import Window
from iscp_dagster.sources.changes import retrieve_or_snapshot
from iscp_dagster.stores.lance_segments import TextRecipe


@dataclass(frozen=True, slots=True)
class Through:
    """A window through Spark."""

    scan: float
    store: float
    result: ConsumerResult
    place: Path
    """Where the copy is that it went into."""


@dataclass(frozen=True, slots=True)
class ByHand:
    """The same batch by Lance's own calls."""

    merge: float
    delete: float
    index: float
    compact: float

    @property
    def seconds(self) -> float:
        """Merge, delete, and what makes the rows searchable by index."""
        return self.merge + self.delete + self.index


@dataclass(frozen=True, slots=True)
class ApplyFigures:
    """Medians of one index."""

    name: str
    scan: float
    store: float
    by_hand: ByHand
    result: ConsumerResult

    @property
    def ratio(self) -> float:
        """The store's part, to what the batch takes by hand without compaction."""
        return self.store / self.by_hand.seconds

    @property
    def ratio_compacted(self) -> float:
        """The same with compaction, which a window leaves to maintenance."""
        return self.store / (self.by_hand.seconds + self.by_hand.compact)


def measure_apply(
    home: Home, releases: Releases, names: Sequence[str], rounds: int
) -> list[ApplyFigures]:
    """Apply the batch to copies of the indexes, in turns with Lance by hand."""
    originals = {name: _by_hand_dataset(home, releases, name) for name in names}
    batch, gone = releases.table(releases.upserts), pa.table({"package": releases.gone})
    through: dict[str, list[Through]] = {name: [] for name in names}
    by_hand: dict[str, list[ByHand]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names:
            one = apply_window(home, name)
            other = _apply_by_hand(originals[name], batch, gone)
            if number:  # the first round only warms up
                through[name].append(one)
                by_hand[name].append(other)
    return [_figures(name, through[name], by_hand[name]) for name in names]


def apply_window(home: Home, name: str, *, on_driver: bool = False) -> Through:
    """Apply the batch to a copy of an index, as an iteration does."""
    with home.open_log() as log:
        job, table = home.jobs(log)[name], home.table(log)
    place = _copy(Path(home.index(job)), home.folder / "copy")
    consumer = home.consumer(job, str(place))
    if on_driver and isinstance(consumer, LanceConsumer):
        consumer.driver_rows = 10**9
    window = Window(consumer.watermark(), home.head)
    begin = time.perf_counter()
    with retrieve_or_snapshot(home.spark, table, window, consumer.columns) as changes:
        scanned = time.perf_counter()
        result = consumer.apply(changes, window)
        done = time.perf_counter()
    return Through(scanned - begin, done - scanned, result, place)


def count_embedded(home: Home) -> tuple[int, ConsumerResult]:
    """Apply the batch to the vector index, and count the texts that the embedder is given."""
    original, given = WordLlama.embed, 0

    def counting(self: WordLlama, texts: Sequence[str]):
        nonlocal given
        given += len(texts)
        return original(self, texts)

    WordLlama.embed = counting
    try:
        # In this process, where the texts can be counted.
        result = apply_window(home, "vectors", on_driver=True).result
    finally:
        WordLlama.embed = original
    return given, result


def _by_hand_dataset(home: Home, releases: Releases, name: str) -> Path:
    """Write the older release as a plain Lance dataset, indexed the same way."""
    import lance

    columns = ["package", TEXT, *(OTHERS if name == "rows" else ())]
    place = home.folder / f"by-hand-{name}"
    TextRecipe(TEXT).build(lance.write_dataset(releases.old.select(columns), place))
    return place


def _apply_by_hand(original: Path, batch: pa.Table, gone: pa.Table) -> ByHand:
    import lance

    place = str(_copy(original, original.with_name("copy-by-hand")))
    rows = batch.select(lance.dataset(place).schema.names)
    times = [time.perf_counter()]
    merge = lance.dataset(place).merge_insert("package").when_matched_update_all()
    merge.when_not_matched_insert_all().execute(rows)
    times.append(time.perf_counter())
    lance.dataset(place).merge_insert("package").when_matched_delete().execute(gone)
    times.append(time.perf_counter())
    lance.dataset(place).optimize.optimize_indices()
    times.append(time.perf_counter())
    lance.dataset(place).optimize.compact_files()
    times.append(time.perf_counter())
    return ByHand(*(after - before for before, after in pairwise(times)))


def _copy(original: Path, place: Path) -> Path:
    if place.exists():
        shutil.rmtree(place)
    shutil.copytree(original, place)
    return place


def _figures(name: str, through: Sequence[Through], by_hand: Sequence[ByHand]) -> ApplyFigures:
    return ApplyFigures(
        name,
        median(one.scan for one in through),
        median(one.store for one in through),
        ByHand(
            median(one.merge for one in by_hand),
            median(one.delete for one in by_hand),
            median(one.index for one in by_hand),
            median(one.compact for one in by_hand),
        ),
        through[-1].result,
    )

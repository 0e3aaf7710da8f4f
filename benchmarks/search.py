"""What a window into an index costs, what a question costs, and what is not done twice.

Run `python benchmarks/search.py`; `--quick` takes a tenth of the packages. `--data` is a folder
with the packages of two Debian releases, `debian-bookworm.parquet` and `debian-trixie.parquet`.
Medians over several rounds; what is compared takes turns. Exits with 1 when a goal is missed:
ratios, since a busy machine slows down both sides.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.search_apply import ApplyFigures, apply_window, count_embedded, measure_apply
from benchmarks.search_packages import Home, Releases
from benchmarks.search_queries import (
    Agreement,
    QueryFigures,
    measure_agreement,
    measure_queries,
)
from iscp_dagster.consumers.base import ConsumerResult

DATA = Path(__file__).parents[2] / "shared" / "data"
TAIL = 3_500
MOST_APPLY, MOST_QUERY, MOST_FRESH = 1.3, 1.2, 5.0
LEAST_AGREEMENT = 0.98


@dataclass(frozen=True, slots=True)
class Counts:
    """What the batch was, and what was done about it."""

    releases: Releases
    texts: ConsumerResult
    vectors: ConsumerResult
    embedded: int


@click.command()
@click.option("--data", default=DATA, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--quick", is_flag=True, help="Take a tenth of the packages, and fewer rounds.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--queries", default=200, show_default=True, type=click.IntRange(min=10))
def main(data: Path, quick: bool, rounds: int, queries: int) -> None:
    """Measure, print, and say which goals are missed."""
    releases = Releases.read(data, quick=quick)
    rounds, queries = (min(rounds, 2), min(queries, 40)) if quick else (rounds, queries)
    tail = TAIL // 10 if quick else TAIL
    with tempfile.TemporaryDirectory(prefix="iscp-search-bench-") as folder:
        home = Home.make(Path(folder), releases)
        asked = measure_queries(home, releases, tail, queries, rounds)
        home.become(releases.new)
        applied = measure_apply(home, releases, ("rows", "texts"), rounds)
        embedded, vectors = count_embedded(home)
        synced = str(apply_window(home, "texts").place)
        agreed = measure_agreement(home, releases, synced, queries)
    counts = Counts(releases, applied[-1].result, vectors, embedded)
    console = Console()
    console.print(_apply_grid(releases, applied))
    console.print(_query_grid(asked))
    console.print(_agreement_grid(releases, agreed))
    console.print(_counts_grid(counts))
    # A tenth is too little for the ratios: what each window and each run costs anyway weighs more.
    missed = _miscounted(counts) + _disagreed(agreed) + ([] if quick else _missed(applied, asked))
    for goal in missed:
        console.print(f"missed: {goal}", style="red", highlight=False)
    sys.exit(1 if missed else 0)


def _apply_grid(releases: Releases, applied: Sequence[ApplyFigures]) -> Grid:
    size = f"{len(releases.upserts):,} upserts, {len(releases.gone):,} deletes"
    grid = Grid(title=f"A window of {size} into a full-text index")
    grid.add_column("")
    for one in applied:
        grid.add_column(f"{one.name}: {one.result.rows_upserted:,} written", justify="right")
    lines = {
        "Spark's scan": [_time(one.scan) for one in applied],
        "the store's part": [_time(one.store) for one in applied],
        "by hand: merge": [_time(one.by_hand.merge) for one in applied],
        "by hand: delete": [_time(one.by_hand.delete) for one in applied],
        "by hand: optimize the index": [_time(one.by_hand.index) for one in applied],
        "by hand: compact the files": [_time(one.by_hand.compact) for one in applied],
        "the store's part, to by hand": [f"{one.ratio:.2f} times" for one in applied],
        "… with compaction by hand": [f"{one.ratio_compacted:.2f} times" for one in applied],
    }
    for what, values in lines.items():
        grid.add_row(what, *values)
    return grid


def _query_grid(asked: Sequence[QueryFigures]) -> Grid:
    grid = Grid(title=f"Questions, median; {asked[0].rows:,} rows, {asked[0].tail:,} in the tail")
    grid.add_column("")
    for one in asked:
        grid.add_column(one.name, justify="right")
    lines = {
        "Lance by hand, dataset open": [_time(one.by_hand) for one in asked],
        "the index, open": [_time(one.reader) for one in asked],
        "… to by hand": [
            f"{one.reader_ratio:.2f} times" if one.reader_ratio else "" for one in asked
        ],
        "search, from the job's name": [_time(one.search) for one in asked],
        "search, fresh": [_time(one.warm) for one in asked],
        "… to not fresh": [f"{one.warm_ratio:.2f} times" for one in asked],
        "… right after a commit": [_time(one.grown) for one in asked],
        "… and nothing read before": [_time(one.cold) for one in asked],
    }
    for what, values in lines.items():
        grid.add_row(what, *values)
    return grid


def _agreement_grid(releases: Releases, agreed: Agreement) -> Grid:
    size = len(releases.upserts) + len(releases.gone)
    grid = Grid(title=f"Fresh over a tail of {size:,} rows, against an index that was synced")
    grid.add_column("")
    grid.add_column("", justify="right")
    grid.add_row("queries that match the same packages", f"{agreed.same:,} of {agreed.queries:,}")
    grid.add_row("agreement of the ten best, ties aside", f"{agreed.top:.3f}")
    return grid


def _counts_grid(counts: Counts) -> Grid:
    releases = counts.releases
    grid = Grid(title="What is not done twice")
    grid.add_column("")
    grid.add_column("packages", justify="right")
    lines = {
        "updated": len(releases.updated),
        "… of them with another text": _rewritten(releases),
        "new": len(releases.upserts) - len(releases.updated),
        "gone": len(releases.gone),
        "full-text: indexed": counts.texts.rows_upserted,
        "full-text: skipped": counts.texts.rows_skipped,
        "vector: stored": counts.vectors.rows_upserted,
        "vector: skipped": counts.vectors.rows_skipped,
        "vector: texts given to the embedder": counts.embedded,
    }
    for what, value in lines.items():
        grid.add_row(what, f"{value:,}")
    return grid


def _rewritten(releases: Releases) -> int:
    return sum(row["package"] in releases.before for row in releases.rewritten)


def _missed(applied: Sequence[ApplyFigures], asked: Sequence[QueryFigures]) -> list[str]:
    """Say which goals are missed, and by what."""
    missed = [
        f"the store's part of a window into {one.name} takes {one.ratio:.2f} times Lance by hand, "
        f"not {MOST_APPLY}"
        for one in applied
        if one.ratio > MOST_APPLY
    ]
    for one in asked:
        if one.reader_ratio and one.reader_ratio > MOST_QUERY:
            missed.append(
                f"a query of {one.name} takes {one.reader_ratio:.2f} times Lance by hand, "
                f"not {MOST_QUERY}"
            )
        if one.warm_ratio > MOST_FRESH:
            missed.append(
                f"a fresh search of {one.name} takes {one.warm_ratio:.1f} times a plain one, "
                f"not {MOST_FRESH:.0f}"
            )
    return missed


def _disagreed(agreed: Agreement) -> list[str]:
    """Say where fresh answers are not those of an index that was synced."""
    missed = []
    if agreed.same < agreed.queries:
        missed.append(f"{agreed.queries - agreed.same:,} queries match other packages when fresh")
    if agreed.top < LEAST_AGREEMENT:
        missed.append(f"the ten best agree to {agreed.top:.3f}, not {LEAST_AGREEMENT}")
    return missed


def _miscounted(counts: Counts) -> list[str]:
    """Say what was done to more or fewer packages than it had to be."""
    wanted = len(counts.releases.rewritten)
    skipped = len(counts.releases.upserts) - wanted
    facts = {
        "indexed": (counts.texts.rows_upserted, wanted),
        "skipped by full-text": (counts.texts.rows_skipped, skipped),
        "skipped by vector": (counts.vectors.rows_skipped, skipped),
        "embedded": (counts.embedded, wanted),
    }
    return [f"{n:,} are {what}, not {w:,}" for what, (n, w) in facts.items() if n != w]


def _time(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1000:,.2f} ms"


if __name__ == "__main__":
    main()

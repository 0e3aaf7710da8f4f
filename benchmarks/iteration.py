"""What an iteration costs: against streaming pipelines, on growing tables, and with nothing to do.

Run `python -m benchmarks.iteration`; `--quick` takes fewer rounds and no table above 100,000 rows.
The packages of two Debian releases are read from `--data`. Medians, ratios within one run. Exits
with 1 when a goal is missed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.iteration_fixed import Parts, measure_fixed
from benchmarks.iteration_growth import Growth, measure_growth
from benchmarks.iteration_house import House
from benchmarks.iteration_shared import COPIES, Round, measure_shared

DATA = Path(__file__).parents[2] / "shared" / "data"
MOST_TIME = 0.5
"""Of the streaming pipelines' wall time."""
MOST_GROWTH = 2.0
"""From the smallest table to the largest."""
MOST_OF_REBUILD = 0.15
CHANGED = 5_000
SHOWS = ("shared", "growth", "fixed")


@click.command()
@click.option("--data", default=DATA, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--quick", is_flag=True, help="Two rounds, and no table above 100,000 rows.")
@click.option("--only", type=click.Choice(SHOWS), multiple=True, help="Only these parts.")
def main(data: Path, rounds: int, quick: bool, only: Sequence[str]) -> None:
    """Measure, print, and say which goals are missed."""
    console = Console()
    missed: list[str] = []
    rounds = 2 if quick else rounds
    sizes = [10_000, 100_000] if quick else [10_000, 100_000, 1_000_000]
    with tempfile.TemporaryDirectory(prefix="iscp-iteration-") as name:
        house = House.open(Path(name))
        if not only or "shared" in only:
            shared = measure_shared(house, data, rounds)
            console.print(_shared_grid(shared))
            missed += _missed_shared(shared)
        if not only or "growth" in only:
            growth = measure_growth(house, data, sizes, CHANGED, rounds)
            console.print(_growth_grid(growth))
            missed += _missed_growth(growth)
    if not only or "fixed" in only:
        console.print(_fixed_grid(measure_fixed(rounds)))
    for goal in missed:
        console.print(f"missed: {goal}", style="red", highlight=False)
    sys.exit(1 if missed else 0)


def _ratio(rounds: Sequence[Round], side: str, figure: str) -> float:
    return statistics.median(
        getattr(one.ours, figure) / getattr(getattr(one, side), figure) for one in rounds
    )


def _shared_grid(rounds: Sequence[Round]) -> Grid:
    title = f"{len(COPIES)} indexes, {rounds[0].changes:,} net changes: one iteration or pipelines"
    grid = Grid(title=title)
    for head in ("round", "ours", "theirs", "ratio", "tuned", "ratio", "bytes", "ratio"):
        grid.add_column(head, justify="right")
    for number, one in enumerate(rounds, start=1):
        grid.add_row(
            str(number),
            f"{one.ours.seconds:.1f} s",
            f"{one.theirs.seconds:.1f} s",
            f"{one.ours.seconds / one.theirs.seconds:.2f}",
            f"{one.tuned.seconds:.1f} s",
            f"{one.ours.seconds / one.tuned.seconds:.2f}",
            f"{one.our_bytes / 1e6:.1f} of {one.their_bytes / 1e6:.1f} MB",
            f"{one.our_bytes / one.their_bytes:.3f}",
        )
    for what, figure in (("median", "seconds"), ("on the processor", "processor")):
        ratios = [f"{_ratio(rounds, side, figure):.2f}" for side in ("theirs", "tuned")]
        read = f"{_bytes(rounds):.3f}" if figure == "seconds" else ""
        grid.add_row(what, "", "", ratios[0], "", ratios[1], "", read)
    return grid


def _bytes(rounds: Sequence[Round]) -> float:
    return statistics.median(one.our_bytes / one.their_bytes for one in rounds)


def _missed_shared(rounds: Sequence[Round]) -> list[str]:
    missed = []
    if (time := _ratio(rounds, "theirs", "seconds")) > MOST_TIME:
        missed.append(f"a shared iteration takes {time:.2f} of the pipelines' time, not 0.5")
    if (read := _bytes(rounds)) > 1 / len(COPIES):
        missed.append(f"a shared iteration reads {read:.3f} of the pipelines' bytes, not 1/8")
    return missed


def _growth_grid(sizes: Sequence[Growth]) -> Grid:
    grid = Grid(title=f"{CHANGED:,} changed rows, three indexes")
    grid.add_column("")
    for size in sizes:
        grid.add_column(f"{size.rows:,} rows", justify="right")
    first = sizes[0].window
    lines = {
        "a window": [f"{size.window.seconds:.2f} s" for size in sizes],
        "on the processor": [f"{size.window.processor:.2f} s" for size in sizes],
        "of which the scan": [f"{statistics.median(size.scans):.2f} s" for size in sizes],
        "to the smallest table's": [f"{s.window.seconds / first.seconds:.2f}" for s in sizes],
        "the same, on the processor": [
            f"{s.window.processor / first.processor:.2f}" for s in sizes
        ],
        "a full rebuild": [f"{size.rebuild.seconds:.2f} s" for size in sizes],
        "rebuild, on the processor": [f"{size.rebuild.processor:.2f} s" for size in sizes],
        "a window, of a rebuild": [f"{s.window.seconds / s.rebuild.seconds:.2f}" for s in sizes],
        "the same, on the processor ": [
            f"{s.window.processor / s.rebuild.processor:.2f}" for s in sizes
        ],
    }
    for what, values in lines.items():
        grid.add_row(what, *values)
    return grid


def _missed_growth(sizes: Sequence[Growth]) -> list[str]:
    first, last = sizes[0], sizes[-1]
    missed = []
    if (growth := last.window.seconds / first.window.seconds) > MOST_GROWTH:
        missed.append(
            f"from {first.rows:,} to {last.rows:,} rows a window grows {growth:.2f} times"
        )
    part = last.window.seconds / last.rebuild.seconds
    if last.rows >= 1_000_000 and part > MOST_OF_REBUILD:
        missed.append(f"at {last.rows:,} rows a window takes {part:.2f} of a rebuild, not 0.15")
    return missed


def _fixed_grid(found: Sequence[Parts]) -> Grid:
    grid = Grid(title="An iteration with nothing to do, seconds")
    heads = ("session", "first iteration", "later ones", "scan", "consumer", "claim, record")
    for head in ("", *heads):
        grid.add_column(head, justify="right" if head else "left")
    for parts in found:
        figures = (
            parts.session,
            parts.first,
            parts.whole,
            parts.scan,
            parts.consumer,
            parts.rest,
        )
        grid.add_row(parts.kind, *(f"{figure:.2f}" for figure in figures))
    return grid


if __name__ == "__main__":
    main()

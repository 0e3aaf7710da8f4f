"""What a tick of the runner costs, and whether it starts the right runs.

Run `python benchmarks/runner.py`; `--quick` takes a tenth of the tables. The log is a real SQLite
file, the tables are real Delta tables on disk. Exits with 1 when a target is missed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.probe import make_tables
from benchmarks.runner_changes import MAX_RUNS, ChangeFigures, measure_changes
from benchmarks.runner_quiet import QuietFigures, measure_quiet

MOST_SECONDS = 1.0
"""Of the slowest quiet tick over 10,000 tables and 100,000 jobs, by the clock; in proportion for
others. The processor's part is printed beside it: on a busy machine the rest is waiting."""
TIMES_LESS = 20
"""Than opening every table."""
MOST_GROWTH = 2.0
"""Of the cost per job, from a hundredth of the tables to all of them."""


@click.command()
@click.option("--tables", default=10_000, show_default=True, type=click.IntRange(min=100))
@click.option("--jobs-per-table", default=10, show_default=True, type=click.IntRange(min=1))
@click.option("--quick", is_flag=True, help="Take a tenth of the tables.")
def main(tables: int, jobs_per_table: int, quick: bool) -> None:
    """Measure, print, and say which targets are missed."""
    count = max(100, tables // 10) if quick else tables
    with tempfile.TemporaryDirectory(prefix="iscp-runner-") as name:
        folder = Path(name)
        made = make_tables(folder, count)
        sizes = sorted({max(1, count // 100), max(1, count // 10), count})
        quiet = [measure_quiet(folder, made[:size], jobs_per_table) for size in sizes]
        changes = measure_changes(folder, made, jobs_per_table)
    console = Console()
    console.print(_quiet_grid(quiet))
    console.print(_changes_grid(changes))
    missed = _missed(quiet, changes)
    for target in missed:
        console.print(f"missed: {target}", style="red", highlight=False)
    sys.exit(1 if missed else 0)


def _quiet_grid(quiet: Sequence[QuietFigures]) -> Grid:
    grid = Grid(title="Ticks with nothing to do")
    grid.add_column("")
    for figures in quiet:
        grid.add_column(f"{figures.jobs:,} jobs\n{figures.tables:,} tables", justify="right")
    lines = {
        "first tick": [_seconds(one.first_seconds) for one in quiet],
        "quiet tick, median": [_seconds(one.median_seconds) for one in quiet],
        "quiet tick, slowest": [_seconds(one.slowest_seconds) for one in quiet],
        "on the processor, median": [_seconds(one.processor_seconds) for one in quiet],
        "on the processor, slowest": [_seconds(one.processor_slowest) for one in quiet],
        "a job's part of that median": [f"{one.seconds_per_job * 1e6:.2f} µs" for one in quiet],
        "that part, to the first column's": [
            f"{one.seconds_per_job / quiet[0].seconds_per_job:.2f} times" for one in quiet
        ],
        "memory, the first tick's": [f"{one.first_megabytes:,.0f} MB" for one in quiet],
        "memory, the process's most": [f"{one.most_megabytes:,.0f} MB" for one in quiet],
        "opening each with DeltaTable": [_seconds(one.open_seconds) for one in quiet],
        "a quiet tick takes less": [f"{one.times_less:,.0f} times" for one in quiet],
    }
    for what, values in lines.items():
        grid.add_row(what, *values)
    return grid


def _changes_grid(changes: ChangeFigures) -> Grid:
    grid = Grid(title=f"{changes.changed} of {changes.tables:,} tables change")
    grid.add_column("")
    grid.add_column("", justify="right")
    grid.add_row("the tick that finds them", _seconds(changes.first_seconds))
    grid.add_row("ticks after it, median", _seconds(changes.median_seconds))
    grid.add_row("ticks until all are caught up", f"{changes.ticks:,}")
    grid.add_row(f"runs, at most {MAX_RUNS} at once", f"{changes.runs:,}")
    grid.add_row("not as it should be", f"{len(changes.wrong)}")
    return grid


def _missed(quiet: Sequence[QuietFigures], changes: ChangeFigures) -> list[str]:
    """Say which targets are missed, and by what."""
    small, large = quiet[0], quiet[-1]
    growth = large.seconds_per_job / small.seconds_per_job
    missed = [f"after the change: {what}" for what in changes.wrong]
    missed += [
        f"a quiet tick said {one.summary!r}, not that all are unchanged"
        for one in quiet
        if not one.all_unchanged
    ]
    if large.slowest_seconds > _allowed(large):
        missed.append(
            f"a quiet tick over {large.jobs:,} jobs took {_seconds(large.slowest_seconds)}, "
            f"more than {_seconds(_allowed(large))}"
        )
    if large.times_less < TIMES_LESS:
        missed.append(
            f"a quiet tick takes {large.times_less:.1f} times less than opening, not {TIMES_LESS}"
        )
    if growth > MOST_GROWTH:
        missed.append(f"a job costs {growth:.1f} times as much among {large.jobs:,}: not linear")
    return missed


def _allowed(figures: QuietFigures) -> float:
    return MOST_SECONDS * max(figures.tables / 10_000, figures.jobs / 100_000)


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1000:,.1f} ms"


if __name__ == "__main__":
    main()

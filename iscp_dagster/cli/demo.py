"""`iscp demo`: the main job, end to end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from iscp_dagster.cli.output import json_option, print_json, print_rows

if TYPE_CHECKING:
    from rich.console import Console

    from iscp_dagster.demo.questions import Answer
    from iscp_dagster.demo.story import DemoReport


@click.command()
@json_option
@click.pass_context
def demo(context: click.Context, as_json: bool) -> None:
    """Index this Python's own documentation, end to end, and check every index.

    Makes a Delta table below ISCP_HOME, registers four indexes, syncs, searches, changes rows,
    searches fresh, syncs again. Repeatable; exits with 1 when a search does not find what it must,
    or an index differs from a build from scratch.
    """
    # Short work: half of what a fresh JVM does is compiling.
    os.environ.setdefault("ISCP_SPARK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    from iscp_dagster.demo.story import Silence, run_demo
    from iscp_dagster.settings import Settings

    settings = Settings.from_env()
    if as_json:
        report = run_demo(settings, Silence())
        print_json(report.as_dict())
    else:
        from rich.console import Console

        report = run_demo(settings, _Terminal(Console(highlight=False)))
        _print_end(report)
    for problem in report.problems:
        click.echo(f"iscp: {problem}", err=True)
    context.exit(1 if report.problems else 0)


class _Terminal:
    """Tells the story on a terminal, with a bar for whatever takes a while."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def working(self, text: str, steps: int) -> Iterator[Callable[[], None]]:
        """Show a bar that moves a step at a time, and how long it has taken."""
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description:<52}"))
        progress = Progress(
            *columns, BarColumn(bar_width=12), TimeElapsedColumn(), console=self._console
        )
        with progress:
            task = progress.add_task(text, total=steps)
            yield lambda: progress.advance(task)
            progress.update(task, completed=steps)

    def show(self, answers: Sequence[Answer]) -> None:
        """Print what each index was asked, what it found, and for which version that is true."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, padding=(0, 1, 0, 1))
        for answer in answers:
            version = f"v{answer.version}{' fresh' if answer.fresh else ''}"
            table.add_row(
                Text(answer.job, "bold"),
                Text(answer.query),
                Text(f"→ {answer.found}", "" if answer.right else "red"),
                Text(f"{version}, {answer.seconds * 1000:.0f} ms", "dim"),
            )
        self._console.print(table)


def _print_end(report: DemoReport) -> None:
    columns = ["job", "type", "trigger", "state", "watermark", "lag_seconds", "rows"]
    click.echo()
    print_rows(report.jobs, columns, empty="")
    click.echo(
        f"\n{report.rows} rows were indexed four ways in {report.first_sync_seconds} s. "
        f"{report.edited + report.added + report.deleted} changes took "
        f"{report.second_sync_seconds} s and {_scans(len(report.scans))} for all four indexes."
    )
    if not report.problems:
        click.echo(
            "Every search found what it must, and every index equals a build from scratch "
            f"({report.seconds:.0f} s in all)."
        )
    click.echo(_NEXT)


def _scans(scans: int) -> str:
    return "one scan of the changes" if scans == 1 else f"{scans} scans of the changes"


_NEXT = """
Next, in this folder:
  iscp dev --live                  the same in Dagster's UI, while the table keeps changing
  iscp search demo.stdlib meaning "shuffle a deck of cards"

With a Delta table of your own:
  iscp table add DB.TABLE --uri PATH --pk ID
  iscp register DB.TABLE JOB --type fulltext --columns COLUMN
  iscp sync"""

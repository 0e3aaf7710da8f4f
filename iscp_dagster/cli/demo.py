"""`iscp demo`: the main job, end to end."""

from __future__ import annotations

import click

from iscp_dagster.cli.output import json_option, print_json, print_rows


@click.command()
@json_option
@click.pass_context
def demo(context: click.Context, as_json: bool) -> None:
    """Index this Python's own documentation, end to end, and check every index.

    Makes a Delta table below ISCP_HOME, registers indexes, syncs, changes rows, syncs again.
    Repeatable; exits with 1 when an index differs from a build from scratch.
    """
    from iscp_dagster.demo.story import no_step, run_demo
    from iscp_dagster.settings import Settings

    settings = Settings.from_env()
    if as_json:
        report = run_demo(settings, lambda _text: None, no_step)
        print_json(report.as_dict())
        context.exit(0 if report.passed else 1)
    from rich.console import Console

    console = Console(highlight=False)
    report = run_demo(
        settings,
        lambda text: console.print(text, markup=False, soft_wrap=True),
        lambda text: console.status(text),
    )
    columns = ["job", "type", "trigger", "state", "version", "lag_seconds"]
    print_rows(report.jobs, columns, empty="", title="jobs")
    for job, right in report.checks.items():
        click.echo(f"{job}: {'equals' if right else 'DIFFERS FROM'} a build from scratch")
    click.echo(
        f"{report.rows} rows in {report.first_sync_seconds} s, then {report.changed} changes in "
        f"{report.second_sync_seconds} s with {report.scans} shared scan(s)"
    )
    click.echo(_NEXT)
    context.exit(0 if report.passed else 1)


_NEXT = """
Next, in this folder:
  dagster dev                                   the assets, sensor and runs in Dagster's UI
  iscp table add DB.TABLE --uri … --pk a,b      record your own Delta table
  iscp register DB.TABLE JOB --type lookup --option by=COLUMN
  iscp sync                                     build it, and keep it up to date from then on
  iscp search DB.TABLE JOB COLUMN=VALUE --fresh ask it

This demo shows the indexes on Delta so far; full-text and vector indexes come to it next."""

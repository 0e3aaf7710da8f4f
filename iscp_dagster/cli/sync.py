"""`iscp sync`: catch up in this process."""

from __future__ import annotations

import signal
from typing import Any

import click

from iscp_dagster.cli.output import account_option, json_option, print_json


@click.command()
@click.option("--table", "tables", multiple=True, metavar="DB.TABLE", help="Only these tables.")
@click.option(
    "--attempts",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="How often a failing job is tried before it is left to the next sync.",
)
@account_option
@json_option
@click.pass_context
def sync(
    context: click.Context, tables: tuple[str, ...], attempts: int, account: str, as_json: bool
) -> None:
    """Bring every index up to date now, in this process.

    Runs the same ticks and iterations as the daemon, until everything is caught up. Exits with 1
    when a job could not be.
    """
    from iscp_dagster.orchestration.instance import open_instance
    from iscp_dagster.orchestration.sync import sync as run_sync
    from iscp_dagster.rules.model import TableKey
    from iscp_dagster.settings import Settings

    # A service manager's stop is a stop like any other: jobs are given back.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = Settings.from_env()
    keys = [TableKey.parse(name, account) for name in tables]
    with open_instance(settings) as instance, _Progress(as_json) as on_iteration:
        report = run_sync(
            settings, instance, tables=keys, attempts=attempts, on_iteration=on_iteration
        )
    behind = [{"job": str(job.key), "reason": reason} for job, reason in report.behind]
    if as_json:
        print_json({"iterations": report.iterations, "behind": behind, "summary": report.summary})
    else:
        click.echo(f"{report.iterations} iterations; {report.summary}")
        for row in behind:
            click.echo(f"{row['job']}: {row['reason']}", err=True)
    if behind:
        context.exit(1)


class _Progress:
    """Shows on stderr which iterations have run."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._status: Any = None

    def __enter__(self):
        if self._quiet:
            return None
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        if self._console.is_terminal:
            self._status = self._console.status("syncing")
            self._status.start()
        return self._tell

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def _tell(self, iteration: Any, succeeded: bool) -> None:
        jobs = ", ".join(iteration.job_names)
        how = "done" if succeeded else "failed"
        self._console.print(
            f"{iteration.table} {iteration.kind} {iteration.window} {jobs}: {how}", markup=False
        )

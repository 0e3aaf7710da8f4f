"""`iscp optimize`: put an index in order."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from iscp_dagster.cli.output import account_option, json_option, print_json


@click.command()
@click.argument("table", metavar="DB.TABLE")
@click.argument("job", metavar="JOB")
@click.option(
    "--retrain", is_flag=True, help="Build text and vector indexes anew, however tidy they are."
)
@account_option
@json_option
def optimize(table: str, job: str, retrain: bool, account: str, as_json: bool) -> None:
    """Compact an index and merge its segments, while searches and iterations go on.

    With --retrain the centroids of a vector index are trained anew, in place.
    """
    from iscp_dagster import api

    # Lance would tell of every try that a window got ahead of; the report says what matters.
    os.environ.setdefault("LANCE_LOG", "error")

    def tell(step: str) -> None:
        if not as_json:
            click.echo(step, err=True)

    report = api.optimize_job(table, job, retrain=retrain, account=account, tell=tell)
    if as_json:
        print_json(asdict(report))
    else:
        click.echo(report)

"""Commands that clean up."""

from __future__ import annotations

from dataclasses import asdict

import click

from iscp_dagster.cli.output import json_option, print_json


@click.command()
@json_option
def gc(as_json: bool) -> None:
    """Remove dropped indexes, old iterations and old windows, and flush idle watermarks."""
    from datetime import UTC, datetime

    from iscp_dagster.joblog import JobLog
    from iscp_dagster.maintenance.flush import flush_watermarks
    from iscp_dagster.maintenance.gc import collect_garbage
    from iscp_dagster.orchestration.instance import open_instance
    from iscp_dagster.orchestration.runs import flights
    from iscp_dagster.settings import Settings

    settings = Settings.from_env()
    now = datetime.now(UTC)
    with open_instance(settings) as instance, JobLog.open(settings) as log:
        in_flight = [flight.in_flight for flight in flights(instance)]
        flushed = flush_watermarks(log, in_flight, now)
        report = collect_garbage(log, settings, now, instance)
    if as_json:
        print_json({**asdict(report), "flushed": flushed})
    else:
        click.echo(f"{report}\n{flushed} idle watermarks written to the log")

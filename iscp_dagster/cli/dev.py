"""`iscp dev`: everything on this machine, with Dagster's UI."""

from __future__ import annotations

from typing import Any

import click

from iscp_dagster.cli.output import print_rows


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=3000,
    show_default=True,
    help="Where Dagster's UI listens.",
)
@click.option(
    "--spark/--no-spark",
    default=True,
    help="Run a Spark Connect server, so that runs need not start a JVM each.",
)
@click.option("--live", is_flag=True, help="Keep changing the demo's table, so that the UI moves.")
def dev(port: int, spark: bool, live: bool) -> None:
    """Start Spark, Dagster's webserver and its daemon; one Ctrl-C stops them all."""
    import signal
    from contextlib import ExitStack

    from iscp_dagster.errors import ServiceDied
    from iscp_dagster.orchestration.dev import check_start, services, watch
    from iscp_dagster.settings import Settings

    settings = Settings.from_env()
    check_start(settings, port)
    # The stop of a service manager or a closed terminal is a stop like any other. Even Ctrl-C: a
    # script's background process is started with it ignored, and its children would be, too.
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.default_int_handler)
    if live:
        from iscp_dagster.demo.live import ensure_demo

        # Before Dagster starts: it then knows the table from the first moment.
        ensure_demo(settings, click.echo)
    try:
        with ExitStack() as stack:
            running = stack.enter_context(
                services(settings, port=port, spark=spark, say=click.echo)
            )
            if live:
                from iscp_dagster.demo.live import changing

                stack.enter_context(changing(settings))
            click.echo(f"Dagster is at http://127.0.0.1:{port} - Ctrl-C stops everything")
            watch(running)
    except KeyboardInterrupt:
        _print_freshness(settings)
    except ServiceDied as died:
        for lines in getattr(died, "__notes__", ()):
            click.echo(lines, err=True)
        raise


def _print_freshness(settings: Any) -> None:
    from iscp_dagster.orchestration.dev import freshness

    rows = [
        {"table": one.table, "window": one.window, "jobs": one.jobs, "seconds": one.seconds}
        for one in freshness(settings)
    ]
    print_rows(
        rows,
        ["table", "window", "jobs", "seconds"],
        empty="no window was brought up to date yet",
        title="from commit to searchable, the last windows",
    )

"""The `iscp` command: its groups and how it fails.

Exit code 0 is done, 1 is failed with one clear line, 2 is wrong usage.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from iscp_dagster import __version__
from iscp_dagster.cli import demo, dev, housekeeping, jobs, optimize, search, sync, tables
from iscp_dagster.errors import IscpError, UsageError

# `iscp` or `iscp table` alone: newer versions of click raise the help.
_HELP = getattr(click.exceptions, "NoArgsIsHelpError", ())


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="iscp")
def cli() -> None:
    """Keep indexes of Delta tables up to date, after the commit.

    Settings come from the environment: ISCP_HOME (default .iscp), ISCP_LOG_URL, ISCP_WAREHOUSE,
    SPARK_REMOTE.
    """


cli.add_command(tables.table)
for command in (
    jobs.register,
    jobs.unregister,
    jobs.alter,
    jobs.status,
    jobs.jobs,
    jobs.iterations,
    jobs.pause,
    jobs.resume,
    jobs.repair,
    sync.sync,
    search.search,
    optimize.optimize,
    housekeeping.gc,
    demo.demo,
    dev.dev,
):
    cli.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """Run the command; an expected failure is one line on stderr, never a traceback."""
    try:
        result = cli.main(args=arguments, prog_name="iscp", standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, _HELP):
            error.show()
            sys.exit(error.exit_code)
        _fail(_in_one_line(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except IscpError as error:
        _fail(str(error), 2 if isinstance(error, UsageError) else 1)
    # Outside standalone mode click hands back the code of `ctx.exit` in place of exiting.
    sys.exit(result if isinstance(result, int) else 0)


def _fail(line: str, code: int) -> NoReturn:
    click.echo(f"iscp: {line}", err=True)
    sys.exit(code)


def _in_one_line(error: click.ClickException) -> str:
    """Say what click found wrong, and where to read on."""
    what = " ".join(error.format_message().split()).removesuffix(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return what if context is None else f"{what}; see `{context.command_path} --help`"

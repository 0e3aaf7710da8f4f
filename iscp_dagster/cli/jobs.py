"""Commands that register, steer and list jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from iscp_dagster.cli.output import account_option, json_option, print_json, print_rows
from iscp_dagster.cli.reload import show_in_dagster
from iscp_dagster.errors import UsageError


def _spec_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `register` and `alter` have in common."""
    for option in reversed(
        (
            click.option(
                "--trigger", "kind", help="default, greedy, periodic or a plug-in's name."
            ),
            click.option("--interval", help="Of a periodic trigger: 30s, 5m, 2h, 1d."),
            click.option(
                "--share/--no-share",
                default=None,
                help="Periodic: join a window that others on the table get.",
            ),
            click.option(
                "--independent/--no-independent",
                default=None,
                help="Never wait for, nor travel with, the table's other jobs.",
            ),
            click.option("--priority", type=int, help="-100 to 100; higher goes first."),
            click.option("--timeout", help="How long one window may take: 10m, 1h."),
            click.option("--lag-target", help="The lag above which the lag check goes red."),
            click.option("--max-window-versions", type=int, help="Most versions in one window."),
            click.option("--max-window-bytes", type=int, help="Most bytes in one window."),
            click.option("--description", help="What the index is for, in Markdown."),
            click.option("--owner", "owners", multiple=True, help="An email or team:NAME."),
            click.option(
                "--spec",
                "spec_file",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="A JSON file with the spec; options given here win over it.",
            ),
            account_option,
        )
    ):
        command = option(command)
    return command


@click.command()
@click.argument("table", metavar="DB.TABLE")
@click.argument("job", metavar="JOB")
@click.option(
    "--type", "type_", help="fulltext, vector, lookup, aggregate, mirror or a plug-in's name."
)
@click.option("--columns", metavar="A,B", help="The columns to index.")
@click.option("--option", "options", multiple=True, metavar="K=V", help="An option of the type.")
@_spec_options
def register(
    table: str,
    job: str,
    type_: str | None,
    columns: str | None,
    options: tuple[str, ...],
    account: str,
    spec_file: Path | None,
    **fields: Any,
) -> None:
    """Register an index on a table; it is built as soon as the runner sees it."""
    from iscp_dagster import api

    spec = _read_spec(spec_file)
    if type_:
        spec["type"] = type_
    if columns is not None:
        spec["columns"] = [name.strip() for name in columns.split(",")]
    if options:
        spec["options"] = {**_mapping(spec, "options"), **dict(map(_key_value, options))}
    if not spec.get("type"):
        raise UsageError("type: missing", cure="write --type mirror (or put it into --spec)")
    registered = api.register_job(table, job, _with_fields(spec, fields), account=account)
    click.echo(f"{account}/{table}/{job}: {'registered' if registered else 'alive already'}")
    show_in_dagster()


@click.command()
@click.argument("table", metavar="DB.TABLE")
@click.argument("job", metavar="JOB")
@click.option("--interrupt", is_flag=True, help="Cancel what is queued or runs of it, at once.")
@_spec_options
def alter(
    table: str, job: str, interrupt: bool, account: str, spec_file: Path | None, **fields: Any
) -> None:
    """Change a job's trigger, priority or limits; what is not given stays."""
    from iscp_dagster import api

    patch = _with_fields(_read_spec(spec_file), fields)
    api.update_job_spec(table, job, patch, account=account, interrupt=interrupt)
    click.echo(f"{account}/{table}/{job}: altered{_canceled(table, job, account, interrupt)}")
    show_in_dagster()


@click.command()
@click.argument("table", metavar="DB.TABLE")
@click.argument("job", metavar="JOB")
@account_option
def unregister(table: str, job: str, account: str) -> None:
    """Drop an index; its rows and files go a day later."""
    from iscp_dagster import api

    done = api.unregister_job(table, job, account=account)
    what = "unregistered" if done else "was not registered"
    click.echo(f"{account}/{table}/{job}: {what}{_canceled(table, job, account, done)}")
    show_in_dagster()


def _canceled(table: str, job: str, account: str, wanted: bool) -> str:
    """End the runs that are for this job alone, where Dagster is in use here; say how many."""
    from iscp_dagster.settings import Settings

    settings = Settings.from_env()
    # Importing Dagster takes a second or two: spared where it has never run.
    if not wanted or not (settings.home / "history").is_dir():
        return ""
    from iscp_dagster.orchestration.cancel import cancel_runs_of
    from iscp_dagster.orchestration.instance import open_instance
    from iscp_dagster.rules.model import TableKey

    with open_instance(settings) as instance:
        runs = cancel_runs_of(instance, TableKey.parse(table, account).job(job))
    return f", {len(runs)} runs canceled" if runs else ""


def _steer(name: str, function: str, done: str, not_done: str, text: str) -> click.Command:
    """Make a command that calls one function of the API on one job."""

    @click.command(name=name, help=text)
    @click.argument("table", metavar="DB.TABLE")
    @click.argument("job", metavar="JOB")
    @account_option
    def command(table: str, job: str, account: str) -> None:
        from iscp_dagster import api

        changed = getattr(api, function)(table, job, account=account)
        click.echo(f"{account}/{table}/{job}: {done if changed else not_done}")

    return command


pause = _steer(
    "pause", "pause_job", "paused", "paused already", "Start no more iterations of a job."
)
resume = _steer(
    "resume",
    "resume_job",
    "resumed",
    "was not paused",
    "Let a paused job go on from its watermark.",
)
repair = _steer(
    "repair",
    "repair_job",
    "repaired, it goes on from its watermark",
    "nothing to repair",
    "Clear a job's error, once its cause is mended; it goes on from its watermark.",
)


@click.command()
@click.option("--state", help="pending, running, canceled, error or completed.")
@click.option("--account", help="Only this account's jobs.")
@click.option("--table", metavar="DB.TABLE", help="Only this table's jobs.")
@json_option
def jobs(state: str | None, account: str | None, table: str | None, as_json: bool) -> None:
    """List the jobs and how far each one is."""
    from iscp_dagster.views import job_views

    rows = job_views(state=state, account=account, table=table)
    if as_json:
        print_json(rows)
        return
    columns = ["account", "db", "table", "job", "type", "trigger", "state", "version"]
    columns += ["lag_seconds", "attempt", "progress", "error_code", "error_msg"]
    print_rows(rows, columns, empty="no jobs: `iscp register DB.TABLE JOB --type …`")


@click.command()
@click.argument("table", metavar="DB.TABLE")
@click.argument("job", metavar="JOB")
@account_option
@json_option
def status(table: str, job: str, account: str, as_json: bool) -> None:
    """Show one job: spec, state, watermark and how its latest iteration went."""
    from iscp_dagster.views import job_status_view

    view = job_status_view(table, job, account=account)
    if as_json:
        print_json(view)
        return
    rows = [{"field": name, "value": value} for name, value in _flat(view)]
    print_rows(rows, ["field", "value"], empty="")


@click.command()
@click.option("--table", metavar="DB.TABLE", help="Only this table's iterations.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="At most so many, the newest ones.",
)
@click.option("--account", help="Only this account's iterations.")
@json_option
def iterations(table: str | None, limit: int, account: str | None, as_json: bool) -> None:
    """List the latest iterations and what their consumers did."""
    from iscp_dagster.views import iteration_views

    rows = iteration_views(table=table, limit=limit, account=account)
    if as_json:
        print_json(rows)
        return
    columns = ["id", "account", "table", "jobs", "window", "kind", "attempt", "rows_scanned"]
    columns += ["rows_upserted", "rows_deleted", "rows_skipped", "seconds", "errors"]
    print_rows(rows, columns, empty="no iterations yet: `iscp sync`")


def _flat(view: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a view says as lines; what is empty says nothing."""
    for name, value in view.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value not in (None, "", []):
            yield f"{prefix}{name}", value


def _read_spec(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UsageError(f"spec: {path} can't be read as JSON: {error}") from error
    if not isinstance(spec, dict):
        raise UsageError(f"spec: {path} does not hold a JSON object")
    return spec


def _key_value(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"option: {text!r} is not K=V")
    return name.strip(), value


def _with_fields(spec: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Lay the given command-line fields over a spec from a file."""
    given = {name: value for name, value in fields.items() if value not in (None, ())}
    trigger = {
        name: given.pop(name)
        for name in ("kind", "interval", "share", "independent")
        if name in given
    }
    merged = {**spec, **given}
    if trigger:
        merged["trigger"] = {**_mapping(spec, "trigger"), **trigger}
    return merged


def _mapping(spec: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a part of a spec from a file that options are laid over."""
    value = spec.get(name) or {}
    if not isinstance(value, dict):
        raise UsageError(f"{name}: not a JSON object")
    return value

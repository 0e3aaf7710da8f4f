"""`iscp table`: source tables."""

from __future__ import annotations

import click

from iscp_dagster.cli.output import account_option, json_option, print_json, print_rows
from iscp_dagster.cli.reload import show_in_dagster


@click.group()
def table() -> None:
    """Record Delta tables and load files into them."""


@table.command()
@click.argument("name", metavar="DB.TABLE")
@click.option("--uri", required=True, help="Where the Delta table is: a path or s3://…, gs://…")
@click.option("--pk", required=True, metavar="A,B", help="The columns of its primary key.")
@click.option("--enable-cdf", is_flag=True, help="Turn the change data feed on where it is off.")
@account_option
def add(name: str, uri: str, pk: str, enable_cdf: bool, account: str) -> None:
    """Record a Delta table as a source of indexes."""
    from iscp_dagster import api

    columns = [column.strip() for column in pk.split(",")]
    added = api.add_table(name, uri=uri, pk=columns, account=account, enable_cdf=enable_cdf)
    click.echo(f"{account}/{name}: {'recorded' if added else 'recorded already'}")
    show_in_dagster()


@table.command()
@click.argument("name", metavar="DB.TABLE")
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "csv", "json"]),
    help="Of the files; default by their ending.",
)
@click.option(
    "--on-duplicate",
    type=click.Choice(["skip", "replace", "error"]),
    default="error",
    show_default=True,
    help="What to do with a key that the batch has twice or the table has already.",
)
@click.option(
    "--load-id",
    help="Name of this load: repeating it changes nothing. Without one, each call loads anew.",
)
@account_option
@json_option
def load(
    name: str,
    files: tuple[str, ...],
    file_format: str | None,
    on_duplicate: str,
    load_id: str | None,
    account: str,
    as_json: bool,
) -> None:
    """Load Parquet, CSV or JSON files into a table, in one commit or not at all.

    Of rows with one key, skip keeps the first and what the table has, replace takes the last, in
    the order of the files. CSV files have a header; an empty field is NULL, a quoted one an empty
    text. JSON files have one object a line. A column that the files lack gets its default or NULL.
    """
    from iscp_dagster.sources.load import load_files

    report = load_files(
        name,
        files,
        file_format=file_format,
        on_duplicate=on_duplicate,
        load_id=load_id,
        account=account,
    )
    if as_json:
        print_json(report.as_dict())
    else:
        click.echo(str(report))


@table.command(name="list")
@click.option("--account", help="Only this account's tables.")
@json_option
def list_(account: str | None, as_json: bool) -> None:
    """List the recorded tables."""
    from iscp_dagster import api

    rows = [
        {
            "account": known.key.account,
            "db": known.key.db,
            "table": known.key.table,
            "uri": known.uri,
            "pk": list(known.pk),
            "delta_id": known.delta_id,
            "added_at": known.added_at,
        }
        for known in api.get_tables(account=account)
    ]
    if as_json:
        print_json(rows)
        return
    columns = ["account", "db", "table", "pk", "uri", "added_at"]
    print_rows(rows, columns, empty="no tables: `iscp table add DB.TABLE --uri … --pk …`")


@table.command()
@click.argument("name", metavar="DB.TABLE")
@account_option
def drop(name: str, account: str) -> None:
    """Forget a table; its data stays where it is."""
    from iscp_dagster import api

    dropped = api.drop_table(name, account=account)
    click.echo(f"{account}/{name}: {'dropped' if dropped else 'was not recorded'}")
    show_in_dagster()

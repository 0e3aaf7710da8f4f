"""`iscp search`: ask an index."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from iscp_dagster.cli.output import account_option, json_option, print_json, print_rows
from iscp_dagster.errors import UsageError

if TYPE_CHECKING:
    from iscp_dagster.search import SearchResult


@click.command()
@click.argument("table", metavar="DB.TABLE")
@click.argument("job", metavar="JOB[,JOB]")
@click.argument("query", required=False)
@click.option(
    "-k", type=click.IntRange(1, 100_000), default=10, show_default=True, help="Most hits."
)
@click.option("--where", help="A filter over the columns that the index holds.")
@click.option("--columns", metavar="A,B", help="What to show beside the key; all by default.")
@click.option("--vector", metavar="[…]", help="What to be near to, as a JSON list of numbers.")
@click.option("--fresh", is_flag=True, help="Merge changes that the index does not hold yet.")
@account_option
@json_option
def search(
    table: str,
    job: str,
    query: str | None,
    k: int,
    where: str | None,
    columns: str | None,
    vector: str | None,
    fresh: bool,
    account: str,
    as_json: bool,
) -> None:
    """Ask an index, or several of one table together.

    QUERY is what to look for. Full-text: words, "phrases", +must, -not, fuzzy~1. Vector: a text,
    if the index has an embedder. Lookup and aggregate: column=value, several with spaces between
    them, or a value of the first column the index is sorted by.

    Several full-text and vector indexes, with commas between them, are asked at one version of
    the table, and their hits are ranked together (reciprocal rank fusion).
    """
    from iscp_dagster.search import search as ask

    result = ask(
        table,
        job,
        query,
        k=k,
        account=account,
        where=where,
        columns=None if columns is None else _names(columns),
        vector=None if vector is None else _numbers(vector),
        fresh=fresh,
    )
    if result.error is not None:
        click.echo(
            f"{account}/{table}/{job} is in error and stands still: {result.error}", err=True
        )
    if as_json:
        print_json(_document(result))
        return
    rows = [_texts(row) for row in result.table.to_pylist()]
    print_rows(rows, result.table.column_names, empty="nothing found", as_named=True)
    click.echo(_standing(result))


def _document(result: SearchResult) -> dict[str, Any]:
    return {
        "watermark": str(result.watermark),
        "version": result.version,
        "fresh": result.fresh,
        "lag_seconds": result.lag_seconds,
        "hits": _plain(result.hits()),
    }


def _standing(result: SearchResult) -> str:
    count = result.table.num_rows
    if result.lag_seconds is None:
        lag = "lag unknown"
    else:
        lag = f"{result.lag_seconds:.1f} s behind" if result.lag_seconds else "up to date"
    hits = "1 hit" if count == 1 else f"{count} hits"
    return f"{hits} at {result.watermark}, version {result.version}, {lag}"


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    return [name for name in names if name]


def _numbers(text: str) -> list[float]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UsageError(f"vector: {text[:40]!r} is not JSON", cure="write [0.1, 0.2]") from error
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise UsageError("vector: not a list of numbers", cure="write [0.1, 0.2]")
    return [float(value) for value in values]


def _texts(row: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: None if value is None else _text(value) for name, value in row.items()}


def _text(value: Any) -> str:
    plain = _plain(value)
    if isinstance(plain, float):
        return f"{plain:.6g}"
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return " ".join(text.split())


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, with nothing lost that JSON can say."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case datetime() | date() | time():
            return value.isoformat().replace("+00:00", "Z")
        case Decimal() | timedelta():
            return str(value)
        case bytes():
            return value.hex()
        case list() | tuple():
            return [_plain(one) for one in value]
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
        case _:
            return value

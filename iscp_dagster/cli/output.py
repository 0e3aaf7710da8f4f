"""What commands print: tables for people, JSON for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
account_option = click.option(
    "--account", default="sys", show_default=True, help="Who owns the table."
)


def print_json(value: object) -> None:
    """Print a value as JSON, a list with one element a line; times as ISO 8601."""
    if isinstance(value, list) and value:
        # Without indent the encoder is written in C: ten thousand rows take no time.
        rows = ",\n ".join(json.dumps(row, default=_plain, ensure_ascii=False) for row in value)
        click.echo(f"[{rows}]")
        return
    click.echo(json.dumps(value, indent=2, default=_plain, ensure_ascii=False))


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    empty: str,
    title: str = "",
    as_named: bool = False,
) -> None:
    """Print rows as a table, or the sentence for none; `as_named` keeps the columns' own names."""
    if not rows:
        click.echo(empty)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=None, header_style="bold")
    for name in columns:
        header = Text(name if as_named else name.replace("_", " "))
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(row.get(name))) for name in columns))
    # Into a pipe there is no width to fit: never cut or fold what somebody may grep.
    console = Console() if sys.stdout.isatty() else Console(width=240)
    console.print(table)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(_plain(value)) if isinstance(value, datetime) else str(value)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return str(value)

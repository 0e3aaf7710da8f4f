"""The statements of a load: a batch, as the temp view `SOURCE`, against its table."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from iscp_dagster.sources.batch import Target
from iscp_dagster.spark.sql import quote_identifier, quote_identifiers, quote_path_table

SOURCE = "iscp_load"
"""The temp view with the batch: one row per key, no key NULL."""


class OnDuplicate(StrEnum):
    """What happens to a key that the batch has twice or the table has already."""

    SKIP = "skip"
    """The first row counts, and what the table has stays."""
    REPLACE = "replace"
    """The last row counts, and takes the place of what the table has."""
    ERROR = "error"
    """Nothing is loaded."""


def known_key_statement(uri: str, target: Target) -> str:
    """Ask for one key of the batch that the table has already."""
    return (
        f"select {_listed('s', target.key)} from {SOURCE} as s "  # noqa: S608 - all quoted
        f"left semi join {quote_path_table(uri)} as t on {_same_key(target)} limit 1"
    )


def merge_statement(
    uri: str, target: Target, present: Sequence[str], on_duplicate: OnDuplicate
) -> str:
    """Bring the batch into the table.

    Args:
        uri: Where the table is.
        target: Its columns and key.
        present: The columns that the batch has.
        on_duplicate: What to do with a key that the table has.
    """
    lines = [f"merge into {quote_path_table(uri)} as t using {SOURCE} as s on {_same_key(target)}"]
    match on_duplicate:
        case OnDuplicate.SKIP:
            pass
        case OnDuplicate.REPLACE:
            changes = _replacements(target, present)
            if changes:
                lines.append(f"when matched then update set {', '.join(changes)}")
        case OnDuplicate.ERROR:
            # For a key that came in after the last look: the whole statement fails, not the row.
            guard = f"t.{quote_identifier(target.key[0])} = raise_error('the table has the key')"
            lines.append(f"when matched then update set {guard}")
    # A column that is not listed gets its default, or NULL.
    row = f"({quote_identifiers(present)}) values ({_listed('s', present)})"
    lines.append(f"when not matched then insert {row}")
    return "\n".join(lines)


def _same_key(target: Target) -> str:
    # No key of the batch is NULL, and Delta finds files by `=` only.
    names = map(quote_identifier, target.key)
    return " and ".join(f"t.{name} = s.{name}" for name in names)


def _listed(alias: str, names: Sequence[str]) -> str:
    return ", ".join(f"{alias}.{quote_identifier(name)}" for name in names)


def _replacements(target: Target, present: Sequence[str]) -> list[str]:
    """A row takes the place of the whole row: what the files have not becomes NULL."""
    changes: list[str] = []
    for field in target.fields:
        name = quote_identifier(field.name)
        if field.name in target.key:
            continue
        if field.name in present:
            changes.append(f"t.{name} = s.{name}")
        elif field.name not in target.automatic:
            changes.append(f"t.{name} = null")
    return changes

"""Conditions on the rows of a Delta index, written for the engine inside delta-rs.

A *term* is `column=value`: what lookups ask most. The value is text, read as the column's type.
Nothing that a user wrote becomes SQL as it stands: terms become quoted literals, filters are parsed
and written anew.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from iscp_dagster.errors import UsageError
from iscp_dagster.rules.filters import parse_filter

if TYPE_CHECKING:
    import pyarrow as pa


def quoted(name: str) -> str:
    """Return a name as an identifier.

    Example:
        >>> quoted('a"b')
        '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as a string literal."""
    return "'" + text.replace("'", "''") + "'"


def parse_terms(text: str, default: str | None) -> tuple[tuple[str, str], ...]:
    """Read `section=editors priority="very high"`; words without `=` are for the default column.

    Args:
        text: What the user wrote.
        default: The column that a text without any `=` asks for; None if there is no such column.

    Example:
        >>> parse_terms("section=editors", None)
        (('section', 'editors'),)
        >>> parse_terms("text editors", "section")
        (('section', 'text editors'),)
    """
    if "=" not in text and default is not None:
        return ((default, text),)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"query: {text!r} has a quote that never ends") from error
    terms = [word.partition("=") for word in words]
    if not terms or not all(name and separator for name, separator, _ in terms):
        raise UsageError(
            f"query: {text!r} is not column=value", cure="put values with spaces into quotes"
        )
    return tuple((name, value) for name, _, value in terms)


def render_terms(terms: Sequence[tuple[str, str]], schema: pa.Schema) -> list[str]:
    """Write terms as SQL, each value as its column's type."""
    spelling = {name.lower(): name for name in schema.names}
    return [_render_term(name, value, schema, spelling) for name, value in terms]


def render_filter(text: str, columns: Sequence[str]) -> str:
    """Check a filter over the columns and write it anew the way delta-rs reads SQL."""
    from sqlglot import parse_one

    tree = parse_one(parse_filter(text, columns).text, dialect="spark")
    return f"({tree.sql(dialect='postgres', identify=True, comments=False)})"


def _render_term(name: str, value: str, schema: pa.Schema, spelling: Mapping[str, str]) -> str:
    import pyarrow as pa

    found = spelling.get(name.lower())
    if found is None:
        raise UsageError(
            f"query: the index has no column {name!r}", cure=f"it has {', '.join(schema.names)}"
        )
    kind = schema.field(found).type
    if pa.types.is_nested(kind) or _is_binary(kind):
        raise UsageError(f"query: {found!r} is {kind} and can't be compared with a text")
    try:
        pa.array([value], pa.string()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"query: {found!r} is {kind}, {value!r} is not") from error
    return f"{quoted(found)} = {_cast(value, kind)}"


def _is_binary(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _cast(value: str, kind: pa.DataType) -> str:
    """Write a value as a constant of a type; a constant can be compared with file statistics."""
    import pyarrow as pa

    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return literal(value)
    return f"arrow_cast({literal(value)}, {literal(engine_type(kind))})"


def engine_type(kind: pa.DataType) -> str:
    """Return a type as the engine writes it."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        zone = "None" if kind.tz is None else f'Some("{kind.tz}")'
        return f"Timestamp(Microsecond, {zone})"
    if pa.types.is_decimal(kind):
        return f"Decimal128({kind.precision}, {kind.scale})"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "Utf8"
    names = {"bool": "Boolean", "float": "Float32", "double": "Float64", "date32[day]": "Date32"}
    return names.get(str(kind), str(kind).capitalize())

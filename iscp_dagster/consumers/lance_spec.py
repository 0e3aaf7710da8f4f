"""Reading the specs of Lance indexes: what they store, under which names, and small options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from iscp_dagster.consumers.base import ColumnFacts
from iscp_dagster.consumers.lance_rows import check_plain
from iscp_dagster.errors import UsageError
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.stores.lance_index import CONTROL, KEY

_TAKEN = frozenset({KEY, CONTROL, "vector", "_score", "_distance", "_rowid", "_rowaddr"})


def stored_names(columns: Sequence[str]) -> dict[str, str]:
    """Give each column the name it is stored under: its own where that is plain, else `c<n>`."""
    names: dict[str, str] = {}
    for number, name in enumerate(columns):
        plain = name.isascii() and name.isidentifier() and name.islower() and name not in _TAKEN
        clash = any(name == f"c{i}" for i in range(len(columns)))
        names[name] = name if plain and not clash else f"c{number}"
    return names


def check_stored(field: str, columns: Iterable[ColumnFacts]) -> None:
    """Refuse columns that can't be stored in the index."""
    for column in columns:
        check_plain(field, column.name, column.type)


def read_choice(spec: JobSpec, name: str, choices: Sequence[str]) -> str:
    """Read an option that is one of a few words; the first is the default."""
    value = spec.options.get(name, choices[0])
    if value not in choices:
        raise UsageError(f"{name}: {value!r} is unknown", cure=f"known: {', '.join(choices)}")
    return value


def read_switch(spec: JobSpec, name: str, *, default: bool) -> bool:
    """Read an option that is true or false."""
    choices = ("true", "false") if default else ("false", "true")
    return read_choice(spec, name, choices) == "true"

"""Texts inside JSON columns, named by a path: `doc:$.title`, `doc:$.authors[0].name`.

While indexing, Spark's `get_json_object` reads them; whoever has no Spark reads the same with
`JsonPath.read`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

_PATH = re.compile(r"(?P<column>.+?):(?P<path>\$(?:\.[A-Za-z_][A-Za-z0-9_-]*|\[\d{1,9}\])+)")
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A place in the JSON documents of a column."""

    column: str
    path: str

    @staticmethod
    def parse(text: str) -> JsonPath | None:
        """Read `column:$.path`; None when it is no path."""
        found = _PATH.fullmatch(text)
        return None if found is None else JsonPath(found["column"], found["path"])

    @property
    def label(self) -> str:
        """How the place is called among the columns of an index."""
        return f"{self.column}:{self.path}"

    def read(self, document: str | None) -> str | None:
        """Return the text at the place; None where there is none, or no JSON.

        Fractions are written the way Java does; objects and lists are JSON again.
        """
        try:
            value: Any = json.loads(document or "")
        except ValueError:
            return None
        for name, position in _STEP.findall(self.path):
            if name and isinstance(value, dict):
                value = value.get(name)
            elif position and isinstance(value, list) and int(position) < len(value):
                value = value[int(position)]
            else:
                return None
        return None if value is None else _written(value, inside=False)


def _written(value: Any, *, inside: bool) -> str:
    match value:
        case float():
            return _java(value)
        case str():
            return json.dumps(value, ensure_ascii=False) if inside else value
        case dict():
            pairs = (
                f"{_written(k, inside=True)}:{_written(v, inside=True)}" for k, v in value.items()
            )
            return "{" + ",".join(pairs) + "}"
        case list():
            return "[" + ",".join(_written(one, inside=True) for one in value) + "]"
        case _:
            return json.dumps(value)


def _java(number: float) -> str:
    """Write a fraction as Java does: `0.5`, `1.0E10`."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    if not isinstance(exponent, int):
        return repr(number)
    first, rest = digits[0], "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{first}.{rest}E{exponent + len(digits) - 1}"

"""Which consumers there are: the built-in ones, and plug-ins found by entry point.

A plug-in is a subclass of `Consumer` that an installed package offers in the entry-point group
`iscp_dagster.consumers`. A type from the log only selects among these; it is never imported or
evaluated, and a plug-in never replaces a built-in type.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from iscp_dagster.consumers.base import Consumer
from iscp_dagster.errors import UsageError

GROUP = "iscp_dagster.consumers"

_BUILT_IN = {
    "aggregate": ("iscp_dagster.consumers.aggregate", "Aggregate"),
    "fulltext": ("iscp_dagster.consumers.fulltext", "Fulltext"),
    "lookup": ("iscp_dagster.consumers.lookup", "Lookup"),
    "mirror": ("iscp_dagster.consumers.mirror", "Mirror"),
    "vector": ("iscp_dagster.consumers.vector", "Vector"),
}


def consumer_types() -> tuple[str, ...]:
    """Return the types a spec may name."""
    return tuple(sorted({*_BUILT_IN, *entry_points(group=GROUP).names}))


def get_consumer_class(type_name: str) -> type[Consumer]:
    """Return the consumer of a type.

    Raises:
        UsageError: No such type, or the plug-in behind it is no consumer.
    """
    if type_name in _BUILT_IN:
        module, name = _BUILT_IN[type_name]
        return getattr(import_module(module), name)
    for point in entry_points(group=GROUP):
        if point.name == type_name:
            return _checked(type_name, point.load())
    raise UsageError(
        f"type: {type_name!r} is unknown", cure=f"known: {', '.join(consumer_types())}"
    )


def _checked(type_name: str, found: object) -> type[Consumer]:
    if isinstance(found, type) and issubclass(found, Consumer):
        return found
    raise UsageError(f"type: the plug-in {type_name!r} is no subclass of Consumer")

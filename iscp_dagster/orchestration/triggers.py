"""Custom triggers, found by entry point; nothing from the log is ever imported."""

from __future__ import annotations

from importlib.metadata import entry_points

from iscp_dagster.rules.triggers import BUILT_IN, Trigger

GROUP = "iscp_dagster.triggers"


def known_triggers() -> tuple[str, ...]:
    """Return the names a spec may use."""
    return tuple(sorted({*BUILT_IN, *entry_points(group=GROUP).names}))


def load_triggers() -> dict[str, Trigger]:
    """Load the installed custom triggers; a built-in name is never replaced."""
    return {
        point.name: point.load()
        for point in entry_points(group=GROUP)
        if point.name not in BUILT_IN
    }

"""Which windows a table's partitions may forget.

A window is *needed* while a job may still be asked for it: as long as it ends after the watermark
of the job that is furthest behind. Of the others the newest ones stay, for people to look at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from iscp_dagster.errors import UsageError
from iscp_dagster.rules.model import Window


def prunable_windows(
    keys: Iterable[str], *, lowest: int, in_flight: Collection[str], keep: int
) -> list[str]:
    """Return the partition keys to delete, oldest first.

    Args:
        keys: The table's partition keys; one that is no window is nobody's to delete.
        lowest: The lowest version that a live job of the table stands at.
        in_flight: Partition keys of runs that are queued or running.
        keep: How many windows stay in any case, the newest ones.
    """
    windows = sorted(
        ((window.end.version, window.start.version, key) for key in keys if (window := _read(key))),
        reverse=True,
    )
    old = [key for end, _, key in windows[keep:] if end <= lowest and key not in in_flight]
    return list(reversed(old))


def _read(key: str) -> Window | None:
    try:
        return Window.parse(key)
    except UsageError:
        return None

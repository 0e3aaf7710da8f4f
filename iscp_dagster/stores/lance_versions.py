"""A Lance index as it was: the version of its dataset that stood at some point of history.

A watermark never goes back within one generation. So the newest version that stands at a point, or
before it, is found by opening a few; cleanup takes versions away from the old end.
"""

from __future__ import annotations

from iscp_dagster.errors import IndexBuilding, IndexMissing
from iscp_dagster.rules.model import TS
from iscp_dagster.stores.lance_search import LanceReader


def reader_before(reader: LanceReader, uri: str, at: TS) -> LanceReader | None:
    """Return the newest version of an index that stands at a point or before it.

    Args:
        reader: The index, where it stands after the point or at it.
        uri: Where it is.
        at: The point.

    Returns:
        None when cleanup took that version, or there was none.
    """
    if reader.watermark <= at:
        return reader
    found: LanceReader | None = None
    above, below, step = reader.version, 0, 1
    while above - below > 1:
        # Most often it is a few versions back: look there first, then further and further.
        number = max(above - step, (above + below) // 2)
        step *= 2
        one = _open(uri, number)
        if one is not None and one.watermark > at:
            above = number
        else:
            below, found = number, one
    return found


def _open(uri: str, version: int) -> LanceReader | None:
    try:
        return LanceReader.open(uri, version)
    except (IndexMissing, IndexBuilding):
        return None

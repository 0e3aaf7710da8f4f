"""`mirror`: a keyed copy of a table, all columns or some, all rows or those a filter lets in."""

from __future__ import annotations

from iscp_dagster.consumers.keyed import KeyedCopy


class Mirror(KeyedCopy):
    """A keyed copy; `--columns` picks columns, `--option where=…` rows."""

    type = "mirror"

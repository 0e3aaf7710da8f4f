"""`lookup`: a covering secondary index, sorted by other columns than the key.

A query for a value or a range of the `by` columns opens the few files that can hold it.
"""

from __future__ import annotations

from iscp_dagster.consumers.keyed import KeyedCopy


class Lookup(KeyedCopy):
    """A copy sorted by the columns of `--option by=a,b`; `--columns` says what it covers."""

    type = "lookup"
    options = ("by", "where")
    required = ("by",)

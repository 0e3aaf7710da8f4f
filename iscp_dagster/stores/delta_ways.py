"""How a window gets into a Delta index: four ways to the same content, each in one commit.

*Direct* goes without Spark, which has more to plan than to do for some thousand rows. The other
three are Spark's. *Rewrite* writes the whole index anew, sorted: best while it is small, or where
much of it changes. *Patch* marks the rows of the changed keys as deleted and appends the new ones;
the keys go into the statement, so it is for few of them, and its cost hardly grows with the index.
*Merge* is Delta's MERGE, for everything between: it joins the index with the changes twice.

Every tenth direct commit writes a checkpoint, and gathers the small files of a small index into one
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from iscp_dagster.spark.sql import column, quote_identifier, quote_literal, quote_path_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

GONE = "_iscp_gone"
"""The column of a batch that tells a deletion from an upsert."""

SMALL_INDEX = 20_000
"""Rows up to which writing an index anew costs no more than finding what to change in it."""
SHARE_TO_REWRITE = 4
"""An index is also written anew when at least one in so many of its rows changes."""
MOST_PATCHED = 10_000
"""Keys that a statement may carry."""
MOST_DIRECT = 100_000
"""Rows that are applied without Spark: they all are in this process for a moment."""
MOST_DIRECT_BYTES = 64_000_000
"""The texts in them."""
CHECKPOINT_EVERY = 10
"""Delta's own distance between checkpoints."""

# Types whose values survive the way through text, and compare as plain equality does.
_WRITABLE = frozenset(
    "string boolean tinyint smallint int bigint date timestamp timestamp_ntz".split()  # noqa: SIM905
)


_PLAIN = _WRITABLE | {"binary", "float", "double"}

Keys = Sequence[tuple[str | None, ...]]


class Way(StrEnum):
    """How a window is applied."""

    DIRECT = "direct"
    REWRITE = "rewrite"
    PATCH = "patch"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class Batch:
    """What one window changes in an index."""

    rows: DataFrame
    """One row per changed key, with the index's columns and `GONE`."""
    key: tuple[str, ...]
    order: tuple[str, ...]
    """The columns that the index is sorted by when it is written anew."""
    changed: int
    """How many rows there are."""
    upserts: int
    """How many of them are not gone."""
    fine: bool = False
    """Whether readers look for a few values of `order`."""
    keys: Keys | None = None
    """The keys as text, where they have been looked at already."""
    fetched: pa.Table | None = None
    """The rows themselves, where they are here already."""

    @property
    def names(self) -> list[str]:
        """The index's columns."""
        return [name for name in self.rows.columns if name != GONE]

    @property
    def upserted(self) -> DataFrame:
        """The rows that shall be there afterwards."""
        from pyspark.sql import functions as fn

        return self.rows.where(~fn.col(GONE)).select(*(column(name) for name in self.names))


def is_plain(type_: str) -> bool:
    """Whether values of a type, as Spark writes it, have no parts."""
    return type_ in _PLAIN or type_.startswith("decimal")


def has_checkpoint(version: int) -> bool:
    """Whether a version is one of those that get a checkpoint."""
    return version % CHECKPOINT_EVERY == 0


def may_be_direct(changed: int, size: int) -> bool:
    """Whether so many rows with texts of such a size may be applied without Spark."""
    return changed <= MOST_DIRECT and size <= MOST_DIRECT_BYTES


def is_rewritten(changed: int, index_rows: int) -> bool:
    """Whether so much of an index changes that its old files are not worth keeping."""
    return index_rows <= SHARE_TO_REWRITE * changed


def choose_way(changed: int, index_rows: int | None) -> Way:
    """Return the cheapest of Spark's ways; an index of unknown size is merged into."""
    if index_rows is not None and (index_rows <= SMALL_INDEX or is_rewritten(changed, index_rows)):
        return Way.REWRITE
    return Way.PATCH if changed <= MOST_PATCHED else Way.MERGE


def without_keys(index: DataFrame, batch: Batch) -> DataFrame:
    """Return the index's rows that the batch does not touch."""
    from pyspark.sql import functions as fn

    keys = batch.rows.select(*(column(n).alias(f"k{i}") for i, n in enumerate(batch.key)))
    same = fn.lit(True)
    for i, name in enumerate(batch.key):
        same &= index[quote_identifier(name)].eqNullSafe(keys[f"k{i}"])
    return index.join(keys, same, "left_anti")


def keys_predicate(batch: Batch) -> str | None:
    """Write the batch's keys as a condition; None where their types or values don't allow it."""
    types = {name: batch.rows.schema[name].dataType.simpleString() for name in batch.key}
    if any(t not in _WRITABLE and not t.startswith("decimal") for t in types.values()):
        return None
    keys = batch.keys
    if keys is None:
        found = batch.rows.select(*(column(name).cast("string") for name in batch.key))
        keys = [tuple(row) for row in found.collect()]
    known = [tuple(text for text in key if text is not None) for key in keys]
    if any(len(key) < len(types) for key in known):
        return None
    return _condition(known, types)


def _condition(keys: Sequence[tuple[str, ...]], types: Mapping[str, str]) -> str:
    """Each column among its values, which lets files be skipped, and all of them together."""
    names = [quote_identifier(name) for name in types]
    kinds = list(types.values())
    parts = []
    for i, name in enumerate(names):
        values = ", ".join(_literal(text, kinds[i]) for text in dict.fromkeys(k[i] for k in keys))
        parts.append(f"{name} in ({values})")
    if len(names) > 1:
        rows = ", ".join(
            f"({', '.join(_literal(t, k) for t, k in zip(key, kinds, strict=True))})"
            for key in keys
        )
        parts.append(f"({', '.join(names)}) in ({rows})")
    return " and ".join(parts)


def _literal(text: str, type_: str) -> str:
    quoted = quote_literal(text)
    return quoted if type_ == "string" else f"cast({quoted} as {type_})"


def merge_statement(uri: str, source: str, key: Sequence[str], names: Sequence[str]) -> str:
    """Write the MERGE of a batch, which is the view `source`, into an index."""
    keys = [quote_identifier(name) for name in key]
    rest = [quote_identifier(name) for name in names if name not in key]
    gone = f"s.{quote_identifier(GONE)}"
    lines = [
        f"merge into {quote_path_table(uri)} as t using {source} as s",
        "on " + " and ".join(f"t.{name} <=> s.{name}" for name in keys),
        f"when matched and {gone} then delete",
    ]
    if rest:
        changes = ", ".join(f"t.{name} = s.{name}" for name in rest)
        lines.append(f"when matched then update set {changes}")
    listed = ", ".join(keys + rest)
    values = ", ".join(f"s.{name}" for name in keys + rest)
    insert = f"insert ({listed}) values ({values})"  # noqa: S608 - all quoted
    lines.append(f"when not matched and not {gone} then {insert}")
    return "\n".join(lines)

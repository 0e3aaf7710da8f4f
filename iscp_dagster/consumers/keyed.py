"""Indexes with one row per row of the table: a keyed copy, laid out for its readers.

A row *belongs* if the filter is true for it. An update that leaves the copied columns as they were
is *skipped*: it costs the index nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from iscp_dagster.consumers.base import (
    SourceFacts,
    check_options,
    check_sortable,
    parse_where,
    resolve_columns,
    split_names,
)
from iscp_dagster.consumers.delta import Build, DeltaConsumer
from iscp_dagster.rules.filters import Filter, parse_filter, render_spark
from iscp_dagster.rules.model import Window
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.spark.sql import columns
from iscp_dagster.stores.delta_index import AppliedCounts, Standing
from iscp_dagster.stores.delta_layout import laid_out
from iscp_dagster.stores.delta_ways import GONE, MOST_PATCHED, Batch, Keys, is_plain, may_be_direct

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from iscp_dagster.sources.changes import Changes


_WAS = "_iscp_was"


@dataclass(frozen=True, slots=True)
class _Look:
    """What the rows that matter to an index are."""

    changed: int
    upserts: int
    """Those that are in the index afterwards."""
    deleted: int
    """Those that are not, and were."""
    keys: Keys | None = None
    fetched: pa.Table | None = None


class KeyedCopy(DeltaConsumer):
    """The table's rows, or those that a filter lets in, with the columns the spec names."""

    options: ClassVar[tuple[str, ...]] = ("where",)
    required: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def make_build(cls, spec: JobSpec, pk: Sequence[str], facts: SourceFacts) -> Build:
        """Check the spec and settle what the index is made from."""
        check_options(spec, cls.options, cls.required)
        names = spec.columns or tuple(column.name for column in facts.columns)
        wanted = resolve_columns("columns", names, facts)
        keys = resolve_columns("pk", pk, facts)
        by = ()
        if "by" in spec.options:
            by = resolve_columns("by", split_names("by", spec.options["by"]), facts)
            check_sortable("by", by)
        where = parse_where(spec, facts)
        used = resolve_columns("where", where.columns if where else (), facts)
        kept = tuple(dict.fromkeys((*keys, *by, *wanted)))
        return {
            "type": cls.type,
            "key": [column.name for column in keys],
            "columns": [column.name for column in kept],
            "by": [column.name for column in by],
            "where": None if where is None else where.text,
            "source": {column.name: column.type for column in (*kept, *used)},
        }

    @classmethod
    def stats_columns(cls, build: Mapping[str, Any]) -> Sequence[str]:
        """The key and the columns the index is sorted by."""
        return tuple(dict.fromkeys((*build["by"], *build["key"])))

    def empty(self, table: DataFrame, build: Mapping[str, Any]) -> DataFrame:
        """Return a DataFrame with the index's columns, made from one with the table's."""
        return table.select(*columns(build["columns"]))

    def lineage(self) -> Mapping[str, tuple[str, ...]]:
        """Each column is the table's column of that name."""
        return {name: (name,) for name in self.build["columns"]}

    def rows_of_snapshot(self, changes: Changes) -> DataFrame:
        """Return the rows that belong, sorted so that a reader of a few values opens few files."""
        rows = changes.upserts
        where = self._where
        if where is not None:
            rows = rows.where(render_spark(where))
        order, fine = self.stats_columns(self.build), bool(self.build["by"])
        kept = laid_out(rows, order, changes.rows_net, fine=fine)
        return kept.select(*columns(self.build["columns"]))

    def apply_tail(
        self, changes: Changes, window: Window, standing: Standing
    ) -> tuple[AppliedCounts, int]:
        """Apply the rows that matter to this index; count the others."""
        from pyspark.sql import functions as fn

        relevant = changes.net.where(self._matters())
        key, rest = self.build["key"], self.build["columns"]
        picked = [
            *(fn.col("key").getField(name).alias(name) for name in key),
            *(fn.col("after").getField(name).alias(name) for name in rest if name not in key),
            (~self._belongs("after")).alias(GONE),
        ]
        look = self._look(changes, relevant, picked)
        skipped = changes.rows_net - look.changed
        if look.changed == 0:
            self.index.advance(self.session, window, standing)
            return AppliedCounts(0, 0), skipped
        batch = Batch(
            rows=relevant.select(*picked),
            key=tuple(key),
            order=tuple(self.stats_columns(self.build)),
            changed=look.changed,
            upserts=look.upserts,
            fine=bool(self.build["by"]),
            keys=look.keys,
            fetched=look.fetched,
        )
        self.index.apply(self.session, batch, window, standing)
        return AppliedCounts(look.upserts, look.deleted), skipped

    def _look(self, changes: Changes, relevant: DataFrame, picked: Sequence[Column]) -> _Look:
        """Count the rows that matter; where they are few, the same query brings them or their keys.

        Args:
            changes: What they are part of.
            relevant: The rows that matter.
            picked: What the index wants of them.
        """
        from pyspark.sql import functions as fn

        was, is_in = self._belongs("before"), self._belongs("after")
        plain = all(is_plain(self.build["source"][name]) for name in self.build["columns"])
        if plain and may_be_direct(changes.rows_net, changes.text_bytes):
            rows = relevant.select(*picked, was.alias(_WAS)).toArrow()
            gone, was_in = (rows.column(name).to_numpy() for name in (GONE, _WAS))
            return _Look(
                rows.num_rows,
                upserts=rows.num_rows - int(gone.sum()),
                deleted=int((gone & was_in).sum()),
                fetched=rows.drop_columns(_WAS),
            )
        if changes.rows_net <= MOST_PATCHED:
            found = relevant.select(*self._key_texts(), was, is_in).collect()
            return _Look(
                len(found),
                upserts=sum(row[-1] for row in found),
                deleted=sum(row[-2] and not row[-1] for row in found),
                keys=[tuple(row[:-2]) for row in found],
            )
        counts = relevant.agg(fn.count("*"), fn.count_if(is_in), fn.count_if(was & ~is_in))
        return _Look(*counts.collect()[0])

    def _key_texts(self) -> list[Column]:
        from pyspark.sql import functions as fn

        return [fn.col("key").getField(name).cast("string") for name in self.build["key"]]

    def _matters(self) -> Column:
        """Whether a changed row may change the index: it is in, was in, or may have been in."""
        from pyspark.sql import functions as fn

        was, is_in = self._belongs("before"), self._belongs("after")
        same = fn.lit(False)
        kept = [name for name in self.build["columns"] if _comparable(self.build["source"][name])]
        if len(kept) == len(self.build["columns"]):
            same = was & is_in
            for name in kept:
                same &= fn.col("before").getField(name).eqNullSafe(fn.col("after").getField(name))
        return ~fn.col("once") | ((was | is_in) & ~same)

    def _belongs(self, image: str) -> Column:
        from pyspark.sql import functions as fn

        there = fn.col(image).isNotNull()
        where = self._where
        if where is None:
            return there
        return there & fn.coalesce(fn.expr(render_spark(where, image)), fn.lit(False))

    @property
    def _where(self) -> Filter | None:
        text = self.build["where"]
        return None if text is None else parse_filter(text, self.build["source"])


def _comparable(type_: str) -> bool:
    return "map<" not in type_ and "variant" not in type_

"""`aggregate`: count, sum, avg, min and max per group, kept up to date from the changes alone.

A changed row *leaves* the group of its before image and *joins* the group of its after image. What
joins and leaves is added to and subtracted from the group's *state* (rows, non-null values, sums;
columns named `_iscp_…` beside the measures), so decimals and counts stay exact. A group is *stale*
when subtraction can't tell its new value: its least or greatest value left, or a float did (floats
don't subtract exactly). Only stale groups are computed again, from the table at the window's end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from iscp_dagster.consumers.base import (
    ColumnFacts,
    SourceFacts,
    check_options,
    check_sortable,
    parse_where,
    resolve_columns,
    split_list,
    split_names,
    unquote,
)
from iscp_dagster.consumers.delta import Build, DeltaConsumer
from iscp_dagster.consumers.measures import Grouping, Measure, Tally
from iscp_dagster.errors import UsageError
from iscp_dagster.rules.model import Window
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.stores.delta_index import AppliedCounts, Standing
from iscp_dagster.stores.delta_layout import laid_out
from iscp_dagster.stores.delta_ways import Batch, may_be_direct

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from iscp_dagster.sources.changes import Changes

FUNCTIONS = ("count", "sum", "avg", "min", "max")
_NUMERIC = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


class Aggregate(DeltaConsumer):
    """A materialized view: `group_by=a,b`, `measures=count,sum:x,…`, and a filter `where=…`."""

    type = "aggregate"
    needs_before = True

    @classmethod
    def make_build(cls, spec: JobSpec, pk: Sequence[str], facts: SourceFacts) -> Build:
        """Check the spec and settle what the index is made from."""
        check_options(spec, ("group_by", "measures", "where"), required=("group_by",))
        if spec.columns:
            raise UsageError(
                "columns: an aggregate takes none", cure="name them in group_by and measures"
            )
        groups = resolve_columns(
            "group_by", split_names("group_by", spec.options["group_by"]), facts
        )
        check_sortable("group_by", groups)
        texts = split_list("measures", spec.options.get("measures") or "count")
        found = [_measure(text, facts) for text in texts]
        _check_names(groups, [measure for measure, _ in found])
        where = parse_where(spec, facts)
        used = resolve_columns("where", where.columns if where else (), facts)
        measured = [column for _, column in found if column is not None]
        return {
            "type": cls.type,
            "group_by": [column.name for column in groups],
            "measures": [[measure.function, measure.column] for measure, _ in found],
            "where": None if where is None else where.text,
            "source": {c.name: c.type for c in (*groups, *measured, *used)},
        }

    @classmethod
    def stats_columns(cls, build: Mapping[str, Any]) -> Sequence[str]:
        """The columns it is grouped and sorted by."""
        return tuple(build["group_by"])

    def empty(self, table: DataFrame, build: Mapping[str, Any]) -> DataFrame:
        """Return a DataFrame with the index's columns, typed as Spark types the measures."""
        return Grouping.of(build).compute(table)

    def lineage(self) -> Mapping[str, tuple[str, ...]]:
        """Groups are the table's columns; a measure comes from what it measures."""
        grouping = Grouping.of(self.build)
        groups = {name: (name,) for name in grouping.group_by}
        measures = {
            measure.name: (measure.column,) if measure.column else grouping.group_by
            for measure in grouping.measures
        }
        return {**groups, **measures}

    def rows_of_snapshot(self, changes: Changes) -> DataFrame:
        """Return all groups, computed from all rows."""
        grouping = Grouping.of(self.build)
        groups = grouping.compute(changes.upserts)
        return laid_out(groups, grouping.group_by, changes.rows_net, fine=False)

    def apply_tail(
        self, changes: Changes, window: Window, standing: Standing
    ) -> tuple[AppliedCounts, int]:
        """Work out the new state of the groups that rows joined or left, and apply it."""
        grouping = Grouping.of(self.build)
        relevant = changes.net.where(grouping.touched())
        moved = grouping.moved(relevant, self.index.rows_at(self.session, standing))
        if may_be_direct(changes.rows_net, changes.text_bytes):
            return self._apply_few(changes, window, standing, moved)
        skipped = changes.rows_net - relevant.count()
        if skipped == changes.rows_net:
            self.index.advance(self.session, window, standing)
            return AppliedCounts(0, 0), skipped
        kept = [moved.persist()]
        try:
            tally = grouping.tally(moved)
            rows = grouping.settled(moved)
            if tally.stale:
                # The way in reads its rows more than once; the table is read once for them.
                kept.append(grouping.again(moved, changes.table_at_end).persist())
                rows = rows.unionByName(kept[-1])
            self.index.apply(self.session, self._batch(rows, tally), window, standing)
        finally:
            for frame in kept:
                frame.unpersist()
        return AppliedCounts(tally.groups - tally.empty, tally.emptied), skipped

    def _apply_few(
        self, changes: Changes, window: Window, standing: Standing, moved: DataFrame
    ) -> tuple[AppliedCounts, int]:
        """Do the same with one query, or two where groups are stale; the rest without Spark."""
        import pyarrow as pa

        grouping = Grouping.of(self.build)
        found = moved.toArrow()
        tally = grouping.tally_of(found)
        skipped = changes.rows_net - tally.rows
        if not tally.groups:
            self.index.advance(self.session, window, standing)
            return AppliedCounts(0, 0), skipped
        rows, fetched = grouping.settled(moved), grouping.settled_of(found)
        if tally.stale:
            again = grouping.again(moved, changes.table_at_end)
            rows = rows.unionByName(again)
            fetched = pa.concat_tables([fetched, again.toArrow().cast(fetched.schema)])
        batch = self._batch(rows, tally, fetched)
        self.index.apply(self.session, batch, window, standing)
        return AppliedCounts(batch.upserts, tally.emptied), skipped

    def _batch(self, rows: DataFrame, tally: Tally, fetched: pa.Table | None = None) -> Batch:
        by = Grouping.of(self.build).group_by
        upserts = tally.groups - tally.empty
        return Batch(rows, by, by, tally.groups, upserts, fetched=fetched)


def _measure(text: str, facts: SourceFacts) -> tuple[Measure, ColumnFacts | None]:
    function, separator, name = text.partition(":")
    function = function.strip().lower()
    if "distinct" in function:
        raise UsageError(
            f"measures: {text!r} can't be kept up to date from changes",
            cure="group by the column instead, and count the groups",
        )
    if function not in FUNCTIONS:
        raise UsageError(f"measures: {text!r} is unknown", cure=f"known: {', '.join(FUNCTIONS)}")
    if not separator and function == "count":
        return Measure("count", None), None
    if not name.strip():
        raise UsageError(f"measures: {function} needs a column", cure=f"write {function}:column")
    (column,) = resolve_columns("measures", [unquote(name.strip())], facts)
    if function in ("sum", "avg") and not column.type.startswith(_NUMERIC):
        raise UsageError(f"measures: {column.name!r} is {column.type}, {function} needs a number")
    if function in ("min", "max"):
        check_sortable("measures", [column])
    return Measure(function, column.name), column


def _check_names(groups: Sequence[ColumnFacts], measures: Sequence[Measure]) -> None:
    seen = {column.name.lower() for column in groups}
    for measure in measures:
        if measure.name.lower() in seen:
            raise UsageError(f"measures: two columns would be called {measure.name!r}")
        seen.add(measure.name.lower())

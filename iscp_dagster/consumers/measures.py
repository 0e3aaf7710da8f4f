"""The arithmetic of an aggregate: from rows to groups, and from changed rows to changed groups.

Within these DataFrames group columns are called `g0`, `g1`, … and measured columns `c0`, `c1`, …,
so that no name of a table can meet one of ours; the index gets the real names at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from iscp_dagster.rules.filters import Filter, parse_filter, render_spark
from iscp_dagster.spark.sql import column
from iscp_dagster.stores.delta_ways import GONE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

ROWS = "_iscp_rows"


@dataclass(frozen=True, slots=True)
class Measure:
    """One aggregate: its function, and the column it is over (none: whole rows)."""

    function: str
    column: str | None

    @property
    def name(self) -> str:
        """What it is called in the index."""
        return self.function if self.column is None else f"{self.function}_{self.column}"


@dataclass(frozen=True, slots=True)
class Tally:
    """How many groups rows joined or left."""

    groups: int
    empty: int
    """Without rows at the window's end."""
    emptied: int
    """Those of them that had rows at its start."""
    stale: int
    rows: int
    """The changed rows that joined or left one."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """What an aggregate groups by, measures and lets in."""

    group_by: tuple[str, ...]
    measures: tuple[Measure, ...]
    where: Filter | None
    types: Mapping[str, str]

    @staticmethod
    def of(build: Mapping[str, Any]) -> Grouping:
        """Read it from an index's build."""
        text = build["where"]
        return Grouping(
            group_by=tuple(build["group_by"]),
            measures=tuple(Measure(function, name) for function, name in build["measures"]),
            where=None if text is None else parse_filter(text, build["source"]),
            types=build["source"],
        )

    @property
    def measured(self) -> tuple[str, ...]:
        """The measured columns, each once."""
        return tuple(dict.fromkeys(m.column for m in self.measures if m.column is not None))

    @property
    def summed(self) -> tuple[str, ...]:
        """The columns whose sum is part of the state."""
        return tuple(
            dict.fromkeys(
                m.column for m in self.measures if m.column and m.function in ("sum", "avg")
            )
        )

    def compute(self, rows: DataFrame) -> DataFrame:
        """Group rows of the table from scratch: all columns of the index."""
        from pyspark.sql import functions as fn

        if self.where is not None:
            rows = rows.where(render_spark(self.where))
        functions: dict[str, Callable[[Column], Column]] = {
            "count": fn.count, "sum": fn.sum, "avg": fn.avg, "min": fn.min, "max": fn.max,
        }  # fmt: skip
        grouped = rows.groupBy(*(column(name) for name in self.group_by)).agg(
            *(
                (functions[m.function](column(m.column)) if m.column else fn.count("*")).alias(
                    m.name
                )
                for m in self.measures
            ),
            fn.count("*").alias(ROWS),
            *(fn.count(column(name)).alias(_count_of(name)) for name in self.measured),
            *(fn.sum(column(name)).alias(_sum_of(name)) for name in self.summed),
        )
        return grouped.select(*(column(name) for name in self.index_columns))

    @property
    def index_columns(self) -> tuple[str, ...]:
        """The columns of the index, in order."""
        return (
            *self.group_by,
            *(m.name for m in self.measures),
            ROWS,
            *map(_count_of, self.measured),
            *map(_sum_of, self.summed),
        )

    def touched(self) -> Column:
        """Whether a changed row joins or leaves a group, or changes what is measured."""
        from pyspark.sql import functions as fn

        was, is_in = self._belongs("before"), self._belongs("after")
        names = (*self.group_by, *self.measured)
        before, after = fn.col("before"), fn.col("after")
        same = (before.getField(n).eqNullSafe(after.getField(n)) for n in names)
        return (was | is_in) & ~(was & is_in & reduce(and_, same))

    def moved(self, net: DataFrame, state: DataFrame) -> DataFrame:
        """Return the new state of every group that rows joined or left, and whether it is stale.

        Args:
            net: The changed rows that touch a group.
            state: The index as it stands.
        """
        from pyspark.sql import functions as fn

        parts = self._part(net, "before", -1).unionAll(self._part(net, "after", 1))
        groups = [f"g{i}" for i in range(len(self.group_by))]
        joins, leaves = fn.col("sign") > 0, fn.col("sign") < 0
        deltas = [fn.sum("sign").alias("d_rows"), fn.sum("counts").alias("counts")]
        for i in range(len(self.measured)):
            value = fn.col(f"c{i}")
            inward, outward = fn.when(joins, value), fn.when(leaves, value)
            deltas += [
                fn.count(inward).alias(f"n_in{i}"),
                fn.count(outward).alias(f"n_out{i}"),
                fn.min(inward).alias(f"min_in{i}"),
                fn.min(outward).alias(f"min_out{i}"),
                fn.max(inward).alias(f"max_in{i}"),
                fn.max(outward).alias(f"max_out{i}"),
            ]
            if self.measured[i] in self.summed:
                deltas += [
                    fn.sum(inward).alias(f"sum_in{i}"),
                    fn.sum(outward).alias(f"sum_out{i}"),
                ]
        change = parts.groupBy(*groups).agg(*deltas)
        old = state.select(fn.struct(*(column(n) for n in state.columns)).alias("old"))
        match = [
            fn.col(g).eqNullSafe(fn.col("old").getField(name))
            for g, name in zip(groups, self.group_by, strict=True)
        ]
        joined = change.join(old, reduce(and_, match), "left")
        return self._new_state(joined, groups, state.schema)

    def tally(self, moved: DataFrame) -> Tally:
        """Count the groups that moved."""
        from pyspark.sql import functions as fn

        gone = fn.col(GONE)
        counts = moved.agg(
            fn.count("*"),
            fn.count_if(gone),
            fn.count_if(gone & fn.col("existed")),
            fn.count_if(fn.col("stale")),
            fn.sum("counts"),
        )
        return Tally(*counts.collect()[0])

    def tally_of(self, moved: pa.Table) -> Tally:
        """Count the groups that moved, where they are here already."""
        columns = (moved.column(name).to_numpy() for name in (GONE, "existed", "stale", "counts"))
        gone, existed, stale, counts = columns
        return Tally(
            groups=moved.num_rows,
            empty=int(gone.sum()),
            emptied=int((gone & existed).sum()),
            stale=int(stale.sum()),
            rows=int(counts.sum()),
        )

    def settled(self, moved: DataFrame) -> DataFrame:
        """Return the new states that the changes alone tell, as rows to apply."""
        from pyspark.sql import functions as fn

        names = [column(name) for name in self.index_columns]
        return moved.where(~fn.col("stale")).select(*names, GONE)

    def settled_of(self, moved: pa.Table) -> pa.Table:
        """Return the same, where the states are here already."""
        import pyarrow as pa

        kept = moved.filter(pa.array(~moved.column("stale").to_numpy()))
        return kept.select([*self.index_columns, GONE])

    def again(self, moved: DataFrame, table_at_end: Callable[[], DataFrame]) -> DataFrame:
        """Compute the stale groups again, as rows to apply."""
        from pyspark.sql import functions as fn

        stale = moved.where(fn.col("stale")).select(
            *(column(name).alias(f"g{i}") for i, name in enumerate(self.group_by))
        )
        match = [column(name).eqNullSafe(fn.col(f"g{i}")) for i, name in enumerate(self.group_by)]
        rows = table_at_end().join(fn.broadcast(stale), reduce(and_, match), "left_semi")
        groups = self.compute(rows)
        return groups.select(
            *(column(n).cast(moved.schema[n].dataType).alias(n) for n in self.index_columns),
            fn.lit(False).alias(GONE),
        )

    def _part(self, net: DataFrame, image: str, sign: int) -> DataFrame:
        """The groups and measured values of one side of the changed rows."""
        from pyspark.sql import functions as fn

        fields = [(f"g{i}", n) for i, n in enumerate(self.group_by)]
        fields += [(f"c{i}", n) for i, n in enumerate(self.measured)]
        # A row that was in a group and is in one is in both parts, and counts once.
        counts = fn.lit(True) if sign < 0 else ~self._belongs("before")
        return net.where(self._belongs(image)).select(
            *(fn.col(image).getField(name).alias(alias) for alias, name in fields),
            fn.lit(sign).cast("bigint").alias("sign"),
            counts.cast("bigint").alias("counts"),
        )

    def _new_state(self, joined: DataFrame, groups: Sequence[str], schema: StructType) -> DataFrame:
        from pyspark.sql import functions as fn

        old = fn.col("old")
        rows = fn.coalesce(old.getField(ROWS), fn.lit(0)) + fn.col("d_rows")
        values: dict[str, Column] = {ROWS: rows}
        stale: list[Column] = [rows < 0]
        for g, name in zip(groups, self.group_by, strict=True):
            values[name] = fn.col(g)
        for i, name in enumerate(self.measured):
            held = fn.coalesce(old.getField(_count_of(name)), fn.lit(0))
            count = held + fn.col(f"n_in{i}") - fn.col(f"n_out{i}")
            values[_count_of(name)] = count
            if name in self.summed:
                total = _total(old.getField(_sum_of(name)), i, schema[_sum_of(name)].dataType)
                values[_sum_of(name)] = fn.when(count > 0, total)
                if self.types[name] in ("float", "double"):
                    stale.append((count > 0) & (fn.col(f"n_out{i}") > 0))
        for measure in self.measures:
            value, left = self._measure(measure, values, old)
            values[measure.name] = value
            if left is not None:
                stale.append(left)
        return joined.select(
            *(values[f.name].cast(f.dataType).alias(f.name) for f in schema.fields),
            (rows == 0).alias(GONE),
            old.isNotNull().alias("existed"),
            ((rows != 0) & reduce(or_, stale)).alias("stale"),
            "counts",
        )

    def _measure(
        self, measure: Measure, values: Mapping[str, Column], old: Column
    ) -> tuple[Column, Column | None]:
        """A measure's new value, and for min and max, whether the old extreme left."""
        from pyspark.sql import functions as fn

        if measure.column is None:
            return values[ROWS], None
        i = self.measured.index(measure.column)
        count = values[_count_of(measure.column)]
        match measure.function:
            case "count":
                return count, None
            case "sum":
                return values[_sum_of(measure.column)], None
            case "avg":
                return _average(
                    values[_sum_of(measure.column)], count, self.types[measure.column]
                ), None
        low = measure.function == "min"
        best = fn.least if low else fn.greatest
        held = old.getField(measure.name)
        came, went = fn.col(f"{measure.function}_in{i}"), fn.col(f"{measure.function}_out{i}")
        replaced = came <= held if low else came >= held
        extreme_left = went <= held if low else went >= held
        left = (
            (count > 0)
            & fn.coalesce(extreme_left, fn.lit(False))
            & ~fn.coalesce(replaced, fn.lit(False))
        )
        # `least` and `greatest` skip NULLs: a group without a value takes the one that came.
        return fn.when(count > 0, best(held, came)), left

    def _belongs(self, image: str) -> Column:
        from pyspark.sql import functions as fn

        there = fn.col(image).isNotNull()
        if self.where is None:
            return there
        return there & fn.coalesce(fn.expr(render_spark(self.where, image)), fn.lit(False))


def _total(held: Column, i: int, type_: DataType) -> Column:
    from pyspark.sql import functions as fn

    zero = fn.lit(0).cast(type_)
    parts = (held, fn.col(f"sum_in{i}"), fn.col(f"sum_out{i}"))
    was, came, went = (fn.coalesce(part, zero) for part in parts)
    return was + came - went


def _average(total: Column, count: Column, type_: str) -> Column:
    """Divide as Spark's own avg does: decimals as decimals, everything else as doubles."""
    from pyspark.sql import functions as fn

    divisor = fn.when(count > 0, count)
    if type_.startswith("decimal"):
        # The fewer digits the divisor may have, the more are left for the quotient.
        return total / divisor.cast("decimal(12,0)")
    return total.cast("double") / divisor.cast("double")


def _count_of(name: str) -> str:
    return f"_iscp_n_{name}"


def _sum_of(name: str) -> str:
    return f"_iscp_sum_{name}"

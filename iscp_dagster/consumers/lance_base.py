"""What the consumers with a Lance index have in common.

A *build* is what an index is made from: columns, options, recipes and the types the used columns
had. It is written into the control row when the index is made, and read from there ever after.

A small window comes to the driver as Arrow; a large one is written to files by Spark tasks, which
send back only the files' names and the keys. Either way the window becomes one commit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from iscp_dagster.consumers.base import (
    Comparison,
    Consumer,
    ConsumerResult,
    IndexPlace,
    SourceFacts,
    find_column,
)
from iscp_dagster.consumers.json_text import JsonPath
from iscp_dagster.consumers.lance_rows import (
    CONTENT,
    GONE,
    KEPT,
    REPORT,
    WAS,
    Layout,
    Tally,
    arrow_type,
    read_reports,
    write_in_task,
)
from iscp_dagster.errors import (
    BuildMismatch,
    IndexBehindWindow,
    IndexContended,
    SourceColumnChanged,
)
from iscp_dagster.iteration.faults import reach
from iscp_dagster.rules.filters import parse_filter, render_spark
from iscp_dagster.rules.model import TS, Table, Window
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.stores.lance_index import (
    LanceIndex,
    LanceStanding,
    Staged,
    open_dataset,
    storage_options,
)
from iscp_dagster.stores.lance_segments import keep_indexed, read_recipes

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset
    from pyspark.sql import Column, DataFrame, SparkSession

    from iscp_dagster.sources.changes import Changes

Build = dict[str, Any]
DRIVER_ROWS = 20_000
"""Up to so many rows come to the driver; more are written by Spark tasks."""


class LanceConsumer(Consumer):
    """A consumer that keeps its index in a Lance dataset."""

    kinds = frozenset({"lance"})
    driver_rows = DRIVER_ROWS

    def __init__(self, place: IndexPlace, spark: SparkSession | None = None) -> None:
        super().__init__(place, spark)
        self.index = LanceIndex(place.uri, place.job_id)
        self._own: SparkSession | None = None
        self._build: Build | None = None

    @classmethod
    @abstractmethod
    def make_build(cls, spec: JobSpec, pk: Sequence[str], facts: SourceFacts) -> Build:
        """Check the spec and settle what the index is made from.

        The build has `type`, `key`, `stored` (column to stored name, the key first), `content`
        (the columns whose absence keeps a row out), `where`, `recipes` and `source`. A stored or
        content column may be a path into a JSON column.
        """

    @classmethod
    def check_spec(cls, spec: JobSpec, facts: SourceFacts) -> None:
        """Raise `UsageError`, naming the field, if the spec does not fit the table."""
        cls.make_build(spec, (), facts)

    @classmethod
    def source_columns(
        cls, spec: JobSpec, pk: Sequence[str], facts: SourceFacts
    ) -> tuple[str, ...]:
        """Return the columns of the table that an index of this spec reads."""
        return tuple(cls.make_build(spec, pk, facts)["source"])

    def prepare(self, spec: JobSpec, table: Table, facts: SourceFacts) -> None:
        """Make the index if it is not there; read what it is built from."""
        standing = self.index.standing()
        if standing is None:
            build = self.make_build(spec, table.pk, facts)
            standing = self.index.create(self.payload(build), build)
        if standing.build.get("type") != self.type:
            raise BuildMismatch(f"{self.place.uri} holds no {self.type} index")
        for name, type_ in standing.build["source"].items():
            _check_column(table, name, type_, facts)
        self._build = standing.build
        self._keep_indexed()

    @property
    def build(self) -> Build:
        """What the index is made from."""
        if self._build is None:
            self._build = self._standing().build
        return self._build

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table that this index reads, fixed when it was made."""
        return tuple(self.build["source"])

    @property
    def session(self) -> SparkSession:
        """The session this consumer reads with: its own, made when first asked for."""
        if self._own is None:
            from iscp_dagster.spark.sql import own_session

            if self._spark is None:
                raise ValueError("this consumer was made without Spark")
            self._own = own_session(self._spark)
        return self._own

    def lineage(self) -> Mapping[str, tuple[str, ...]]:
        """Each column is the table's of that name, or a text inside one of its JSON columns."""
        paths = {name: JsonPath.parse(name) for name in self.build["stored"]}
        paths |= dict.fromkeys(self.build["source"])
        return {
            name: (name,) if (path := paths[name]) is None else (path.column,)
            for name in self.build["stored"]
        }

    def apply(self, changes: Changes, window: Window) -> ConsumerResult:
        """Apply one window and move the watermark, in one commit."""
        from iscp_dagster.sources.changes import ChangeKind

        started = perf_counter()
        standing = self._standing()
        if window.end <= standing.watermark:
            return _result(standing, Tally(), 0, started, no_op=True)
        snapshot = changes.kind is ChangeKind.SNAPSHOT
        if not snapshot and standing.watermark != window.start:
            raise IndexBehindWindow(
                f"{self.place.key} stands at {standing.watermark}, "
                f"the window starts at {window.start}"
            )
        seen = changes.seen_from(self.session)
        rows = self._whole(seen) if snapshot else self._changed(seen)
        self.settle(rows, standing)
        fragments, tally = self._stage(rows, changes.rows_net)
        self.check_tally(tally)
        touched = () if snapshot else (*tally.upserted, *tally.gone, *tally.refused)
        reach("before_commit", self.place.key.name)
        after = self.index.commit(standing, window, Staged(fragments, touched, snapshot))
        self._keep_indexed()
        done = len(tally.upserted) + len(tally.gone) + len(tally.refused)
        skipped = 0 if snapshot else changes.rows_net - done
        return self.result(_result(after, tally, skipped, started), tally)

    def compare(self, changes: Changes) -> Comparison:
        """Compare all keys, and the content of about one row in sixteen.

        Raises:
            IndexContended: The index moved on, and the version that was meant is gone.
        """
        from iscp_dagster.consumers.lance_compare import compare_rows
        from iscp_dagster.stores.lance_versions import reader_before

        at = changes.window.end
        reader = reader_before(LanceIndex.open(self.place.uri), self.place.uri, at)
        if reader is None or reader.watermark != at:
            raise IndexContended(f"{self.place.key} does not stand at {at} any more")
        rows = self._whole(changes.seen_from(self.session))
        return compare_rows(rows, self.layout(reader.dataset), reader.dataset, at)

    def watermark(self) -> TS:
        """Return where the index stands, as the store itself says; 0 when there is none."""
        standing = self.index.standing()
        return TS.zero() if standing is None else standing.watermark

    def row_count(self) -> int | None:
        """Return the rows in the index, as the store itself says."""
        standing = self.index.standing()
        return None if standing is None else standing.rows

    def drop(self) -> None:
        """Remove the index with its files."""
        self.index.drop()

    def close(self) -> None:
        """Give the consumer's own session back; another is made if it is asked for again."""
        own, self._own = self._own, None
        if own is not None:
            from iscp_dagster.spark.sql import release_session

            release_session(own)

    def payload(self, build: Build) -> pa.Schema:
        """Return the columns of the dataset beside its own."""
        import pyarrow as pa

        return pa.schema(
            [
                (stored, arrow_type(build["source"].get(name, "string")))
                for name, stored in build["stored"].items()
            ]
        )

    def layout(self, dataset: LanceDataset) -> Layout:
        """Return how rows are laid out in the dataset."""
        keys = len(self.build["key"])
        return Layout(dataset.schema, keys, len(self.build["stored"]) - keys)

    def value(self, image: Column, name: str) -> Column:
        """Return a column of a row, or what a path finds in one."""
        from pyspark.sql import functions as fn

        path = None if name in self.build["source"] else JsonPath.parse(name)
        if path is None:
            return image.getField(name)
        return fn.get_json_object(image.getField(path.column), path.path)

    def content(self, image: Column) -> list[Column]:
        """Return further columns to read from a row."""
        return []

    def has_content(self, image: Column) -> Column:
        """Whether a row has anything to be found by: a text that is not empty."""
        from pyspark.sql import functions as fn

        there = fn.lit(False)
        for name in self.build["content"]:
            value = self.value(image, name)
            there |= value.isNotNull() & (value != "")
        return there

    def settle(self, rows: DataFrame, standing: LanceStanding) -> None:
        """Settle what only the rows can tell, before the first of them is stored."""

    def check_tally(self, tally: Tally) -> None:
        """Raise if the window must not be committed."""

    def result(self, result: ConsumerResult, tally: Tally) -> ConsumerResult:
        """Return the result, with what this kind of index has to add."""
        return result

    def _whole(self, changes: Changes) -> DataFrame:
        """All rows of a snapshot that belong into the index."""
        from pyspark.sql import functions as fn

        image = fn.struct(*_columns(changes.columns)).alias("after")
        rows = changes.upserts.select(image)
        rows = rows.where(self._belongs("after"))
        return self._laid_out(rows, fn.col("after"), fn.lit(False), fn.lit(False), fn.lit(False))

    def _changed(self, changes: Changes) -> DataFrame:
        """The rows of a tail that matter to this index."""
        from pyspark.sql import functions as fn

        was, is_in = self._belongs("before"), self._belongs("after")
        kept = was & is_in & self._same(self.build["content"])
        same = kept & self._same(self.build["stored"])
        rows = changes.net.where(~fn.col("once") | ((was | is_in) & ~same))
        return self._laid_out(rows, fn.col("key"), ~is_in, was, kept & fn.col("once"))

    def _laid_out(
        self, rows: DataFrame, key: Column, gone: Column, was: Column, kept: Column
    ) -> DataFrame:
        """Select what `lance_rows` reads, under its names."""
        from pyspark.sql import functions as fn

        after = fn.col("after")
        keys = self.build["key"]
        others = [name for name in self.build["stored"] if name not in keys]
        return rows.select(
            *(key.getField(name).alias(f"k{i}") for i, name in enumerate(keys)),
            *(self.value(after, name).alias(f"c{i}") for i, name in enumerate(others)),
            *(column.alias(CONTENT) for column in self.content(after)),
            gone.alias(GONE),
            was.alias(WAS),
            kept.alias(KEPT),
        )

    def _stage(self, rows: DataFrame, at_most: int) -> tuple[tuple[str, ...], Tally]:
        """Write the rows to files that no version names yet."""
        dataset = open_dataset(self.place.uri)
        if dataset is None:
            raise BuildMismatch(f"there is no index at {self.place.uri}")
        layout = self.layout(dataset)
        if at_most > self.driver_rows:
            write = _task(layout, self.place.uri, storage_options(self.place.uri))
            return read_reports(rows.mapInArrow(write, REPORT).toArrow())
        tally = Tally()
        batches = [tally.count(layout.convert(batch)) for batch in rows.toArrow().to_batches()]
        import pyarrow as pa

        return self.index.stage(pa.Table.from_batches(batches, dataset.schema)), tally

    def _belongs(self, image: str) -> Column:
        from pyspark.sql import functions as fn

        there = fn.col(image).isNotNull() & self.has_content(fn.col(image))
        text = self.build["where"]
        if text is not None:
            where = parse_filter(text, self.build["source"])
            there &= fn.expr(render_spark(where, image))
        return fn.coalesce(there, fn.lit(False))

    def _same(self, names: Iterable[str]) -> Column:
        """Whether columns have the values that they had before the window."""
        from pyspark.sql import functions as fn

        before, after = fn.col("before"), fn.col("after")
        same = fn.lit(True)
        for name in names:
            same &= self.value(before, name).eqNullSafe(self.value(after, name))
        return same

    def _keep_indexed(self) -> None:
        dataset = open_dataset(self.place.uri)
        if dataset is not None:
            keep_indexed(dataset, read_recipes(self.build["recipes"]))

    def _standing(self) -> LanceStanding:
        standing = self.index.standing()
        if standing is None:
            raise BuildMismatch(f"there is no index at {self.place.uri}")
        return standing


def _task(
    layout: Layout, uri: str, options: Mapping[str, str] | None
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return write_in_task(batches, layout, uri, options)

    return write


def _columns(names: Sequence[str]) -> list[Column]:
    from iscp_dagster.spark.sql import columns

    return columns(names)


def _check_column(table: Table, name: str, type_: str, facts: SourceFacts) -> None:
    column = find_column(facts, name)
    if column is None:
        raise SourceColumnChanged(f"{table.key} has no column {name!r} any more")
    if column.type != type_:
        raise SourceColumnChanged(f"{table.key}: column {name!r} was {type_}, is {column.type}")


def _result(
    standing: LanceStanding, tally: Tally, skipped: int, started: float, *, no_op: bool = False
) -> ConsumerResult:
    return ConsumerResult(
        watermark=standing.watermark,
        rows_upserted=len(tally.upserted),
        rows_deleted=tally.deleted,
        rows_skipped=skipped,
        row_count=standing.rows,
        seconds=perf_counter() - started,
        no_op=no_op,
    )

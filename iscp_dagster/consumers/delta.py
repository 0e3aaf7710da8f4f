"""What the consumers with a Delta index have in common.

A *build* is what an index is made from (columns, options, and the types the used columns had). It
is written down in the index when it is made, and read from there ever after: a spec that says
something else later changes nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
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
from iscp_dagster.errors import (
    BuildMismatch,
    IndexBehindWindow,
    IndexContended,
    SourceColumnChanged,
)
from iscp_dagster.rules.model import TS, Table, Window
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.stores.delta_index import AppliedCounts, DeltaIndex, Standing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from iscp_dagster.sources.changes import Changes

Build = dict[str, Any]


class DeltaConsumer(Consumer):
    """A consumer that keeps its index in a Delta table."""

    kinds = frozenset({"delta"})

    def __init__(self, place: IndexPlace, spark: SparkSession | None = None) -> None:
        super().__init__(place, spark)
        self.index = DeltaIndex(place.uri, place.job_id)
        self._own: SparkSession | None = None
        self._recorded: Build | None = None

    @classmethod
    @abstractmethod
    def make_build(cls, spec: JobSpec, pk: Sequence[str], facts: SourceFacts) -> Build:
        """Check the spec and settle what the index is made from; `source` maps column to type."""

    @classmethod
    def check_spec(cls, spec: JobSpec, facts: SourceFacts) -> None:
        """Raise `UsageError`, naming the field, if the spec does not fit the table."""
        cls.make_build(spec, (), facts)

    @classmethod
    def example_query(cls, spec: JobSpec, uri: str) -> str:
        """Return an example of how to ask the index, shown with its asset."""
        from iscp_dagster.spark.sql import quote_path_table

        return f"select * from {quote_path_table(uri)} limit 10"  # noqa: S608 - quoted, and only shown

    @classmethod
    def source_columns(
        cls, spec: JobSpec, pk: Sequence[str], facts: SourceFacts
    ) -> tuple[str, ...]:
        """Return the columns of the table that an index of this spec reads."""
        return tuple(cls.make_build(spec, pk, facts)["source"])

    def prepare(self, spec: JobSpec, table: Table, facts: SourceFacts) -> None:
        """Make the index if it is not there; read what it is built from."""
        build = self.index.build()
        if build is None:
            self._create(self.make_build(spec, table.pk, facts), table)
            build = self.index.build()
        if build is None or build.get("type") != self.type:
            raise BuildMismatch(f"{self.place.uri} holds no {self.type} index")
        _check_source(table, build["source"], facts)
        self._recorded = build

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table that this index reads, fixed when it was made."""
        return tuple(self.build["source"])

    @property
    def build(self) -> Build:
        """What the index is made from."""
        if self._recorded is None:
            self._recorded = self.index.build()
        if self._recorded is None:
            raise BuildMismatch(f"there is no index at {self.place.uri}")
        return self._recorded

    @property
    def session(self) -> SparkSession:
        """The session this consumer commits with: its own, made when first asked for."""
        if self._own is None:
            from iscp_dagster.spark.sql import own_session

            if self._spark is None:
                raise ValueError("this consumer was made without Spark")
            self._own = own_session(self._spark)
        return self._own

    def apply(self, changes: Changes, window: Window) -> ConsumerResult:
        """Apply one window and move the watermark, in one commit."""
        from iscp_dagster.sources.changes import ChangeKind

        started = perf_counter()
        standing = self._standing()
        if window.end <= standing.watermark:
            return self._result(standing, standing, AppliedCounts(0, 0), 0, started)
        seen = changes.seen_from(self.session)
        if changes.kind is ChangeKind.SNAPSHOT:
            self.index.replace(self.rows_of_snapshot(seen), window)
            counts, skipped = None, 0
        else:
            self._check_start(standing.watermark, changes.window, window)
            counts, skipped = self.apply_tail(seen, window, standing)
        return self._result(standing, self._committed(window), counts, skipped, started)

    def compare(self, changes: Changes) -> Comparison:
        """Count all rows, and compare checksums of about one in sixteen."""
        from iscp_dagster.spark.fingerprint import fingerprint
        from iscp_dagster.spark.sql import columns

        expected = self.rows_of_snapshot(changes.seen_from(self.session))
        found = self.session.read.format("delta").load(self.place.uri)
        by = self.stats_columns(self.build)
        names = columns(expected.columns)
        wanted, there = (fingerprint(rows.select(*names), by) for rows in (expected, found))
        return Comparison(
            watermark=changes.window.end,
            rows_expected=wanted.rows,
            rows_found=there.rows,
            sampled=wanted.sampled,
            same=wanted == there,
        )

    def watermark(self) -> TS:
        """Return where the index stands, as the store itself says; 0 when there is none."""
        standing = self.index.standing()
        return TS.zero() if standing is None else standing.watermark

    def row_count(self) -> int | None:
        """Return the rows in the index, as its last commit tells."""
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

    @abstractmethod
    def rows_of_snapshot(self, changes: Changes) -> DataFrame:
        """Return the whole content of the index, laid out as it shall be written."""

    @abstractmethod
    def apply_tail(
        self, changes: Changes, window: Window, standing: Standing
    ) -> tuple[AppliedCounts, int]:
        """Apply a tail in one commit; return what was done and how many rows were skipped."""

    @abstractmethod
    def empty(self, table: DataFrame, build: Mapping[str, Any]) -> DataFrame:
        """Return a DataFrame with the index's columns, made from one with the table's."""

    @classmethod
    @abstractmethod
    def stats_columns(cls, build: Mapping[str, Any]) -> Sequence[str]:
        """The key and the columns the index is sorted by."""

    def _check_start(self, stands_at: TS, read: Window, window: Window) -> None:
        """Refuse a tail that does not go on where the index stands; an empty one needs it all."""
        if stands_at.is_zero or stands_at != window.start or stands_at < read.start:
            raise IndexBehindWindow(
                f"{self.place.key} stands at {stands_at}, the window starts at {read.start}"
            )

    def _create(self, build: Build, table: Table) -> None:
        source = self.session.read.format("delta").load(table.uri)
        shape = self.empty(source, build)
        self.index.create(self.session, shape, build, self.stats_columns(build))

    def _standing(self) -> Standing:
        standing = self.index.standing()
        if standing is None:
            raise BuildMismatch(f"there is no index at {self.place.uri}")
        return standing

    def _committed(self, window: Window) -> Standing:
        """Look at the store after a commit: did the window really get in, and where it should?"""
        standing = self._standing()
        if standing.broken or standing.watermark < window.end:
            raise IndexContended(f"{self.place.key}: another writer got in between")
        return standing

    def _result(
        self,
        before: Standing,
        after: Standing,
        counts: AppliedCounts | None,
        skipped: int,
        started: float,
    ) -> ConsumerResult:
        done = counts or AppliedCounts(after.rows or 0, 0)
        return ConsumerResult(
            watermark=after.watermark,
            rows_upserted=done.upserted,
            rows_deleted=done.deleted,
            rows_skipped=skipped,
            row_count=after.rows,
            seconds=perf_counter() - started,
            no_op=before.watermark == after.watermark,
        )


def _check_source(table: Table, recorded: Mapping[str, str], facts: SourceFacts) -> None:
    for name, type_ in recorded.items():
        column = find_column(facts, name)
        if column is None:
            raise SourceColumnChanged(f"{table.key} has no column {name!r} any more")
        if column.type != type_:
            raise SourceColumnChanged(f"{table.key}: column {name!r} was {type_}, is {column.type}")

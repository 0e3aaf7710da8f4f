"""Single windows, one trap each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp_dagster.consumers.base import Consumer, ConsumerResult, IndexPlace
from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.errors import IndexBehindWindow, SourceColumnChanged
from iscp_dagster.rules.model import TS, Window
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.sources.changes import Changes, retrieve
from iscp_dagster.sources.facts import read_facts
from iscp_dagster.spark.sql import own_session, quote_identifier, quote_path_table, spark_errors
from iscp_dagster_tests.consumers.shop import Shop, comparable, ts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MIRROR = JobSpec(type="mirror", columns=("section", "size", "note"))


@dataclass
class Bench:
    """A shop and the indexes on it."""

    spark: SparkSession
    shop: Shop
    home: Path

    def consumer(self, spec: JobSpec, name: str = "job", job_id: int = 1) -> Consumer:
        place = IndexPlace(self.shop.table.key.job(name), job_id, str(self.home / name / "1"))
        made = get_consumer_class(spec.type)(place, self.spark)
        made.prepare(spec, self.shop.table, read_facts(self.shop.uri))
        return made

    def apply(self, consumer: Consumer, start: int, end: int | None = None) -> ConsumerResult:
        window = self.shop.window(start, end)
        with retrieve(self.spark, self.shop.table, window, consumer.columns) as changes:
            return consumer.apply(changes, window)

    def rows(self, consumer: Consumer, *names: str) -> list[tuple[Any, ...]]:
        return comparable(self.index(consumer).select(*names).collect())

    def source(self, *names: str) -> list[tuple[Any, ...]]:
        frame = self.spark.read.format("delta").load(self.shop.uri)
        return comparable(frame.select(*names).collect())

    def index(self, consumer: Consumer) -> DataFrame:
        return self.spark.read.format("delta").load(consumer.place.uri)


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, Shop.create(tmp_path / "shop", rows=12), tmp_path / "indexes")


def test_a_window_that_was_applied_is_a_no_op_with_its_watermark(bench: Bench) -> None:
    mirror = bench.consumer(MIRROR)
    bench.apply(mirror, -1)
    bench.shop.update({"size": "size + 1"}, "id < 5")
    first = bench.apply(mirror, 0)
    again = bench.apply(mirror, 0)
    assert (first.no_op, first.rows_upserted) == (False, 4)
    assert (again.no_op, again.rows_upserted, again.watermark) == (True, 0, ts(1))
    assert str(mirror.watermark()) == str(ts(1))


def test_a_gap_is_refused_and_the_watermark_stays(bench: Bench) -> None:
    mirror = bench.consumer(MIRROR)
    bench.apply(mirror, -1)
    bench.shop.delete("id = 1")
    bench.shop.delete("id = 2")
    with pytest.raises(IndexBehindWindow, match=r"stands at .*-0, the window starts at .*-1"):
        bench.apply(mirror, 1)
    assert mirror.watermark() == ts(0)


def test_an_empty_index_never_starts_with_a_tail(bench: Bench) -> None:
    mirror = bench.consumer(MIRROR)
    bench.shop.delete("id = 1")
    with retrieve(bench.spark, bench.shop.table, bench.shop.window(0), mirror.columns) as changes:
        for window in (bench.shop.window(0), bench.shop.window(-1)):
            with pytest.raises(IndexBehindWindow, match="stands at 0"):
                mirror.apply(changes, window)
    assert mirror.watermark().is_zero


def test_a_failed_window_leaves_the_watermark_where_it_was(bench: Bench) -> None:
    mirror = bench.consumer(MIRROR)
    bench.apply(mirror, -1)
    bench.shop.delete("id = 1")
    window = bench.shop.window(0)
    with retrieve(bench.spark, bench.shop.table, window, ["section"]) as changes:
        bench.spark.catalog.dropGlobalTempView(changes.view)
        with pytest.raises(spark_errors()):
            mirror.apply(changes, window)
    assert mirror.watermark() == ts(0)
    bench.apply(mirror, 0)
    assert bench.rows(mirror, "region", "id") == bench.source("region", "id")


def test_a_snapshot_that_runs_again_leaves_nothing_doubled_and_nothing_deleted(
    bench: Bench,
) -> None:
    mirror = bench.consumer(MIRROR)
    bench.apply(mirror, -1)
    bench.shop.delete("id < 4")
    window = bench.shop.window(0)
    with retrieve(bench.spark, bench.shop.table, window, mirror.columns, snapshot=True) as changes:
        result = mirror.apply(changes, window)
    assert bench.rows(mirror, "region", "id", "note") == bench.source("region", "id", "note")
    assert result.row_count == 9


def test_an_update_of_other_columns_is_skipped_and_counted(bench: Bench) -> None:
    mirror = bench.consumer(MIRROR)
    bench.apply(mirror, -1)
    bench.shop.update({"price": "1.00"}, "id <= 7")
    result = bench.apply(mirror, 0)
    assert (result.rows_skipped, result.rows_upserted) == (7, 0)
    assert (result.watermark, result.row_count) == (ts(1), 12)


def test_rows_enter_and_leave_a_filter(bench: Bench) -> None:
    spec = JobSpec(type="mirror", columns=("size",), options={"where": "size >= 500"})
    mirror = bench.consumer(spec)
    bench.shop.update({"size": "id * 100"}, "true")
    bench.apply(mirror, -1)
    bench.shop.update({"size": "size + 300"}, "id in (2, 3)")
    bench.shop.update({"size": "0"}, "id = 9")
    bench.shop.update({"size": "NULL"}, "id = 10")
    result = bench.apply(mirror, 1)
    found = {key for (key,) in bench.rows(mirror, "id")}
    assert found == {2, 3, 5, 6, 7, 8, 11, 12}
    assert (result.rows_upserted, result.rows_deleted) == (2, 2)


def test_the_build_is_fixed_when_the_index_is_made(bench: Bench) -> None:
    bench.apply(bench.consumer(MIRROR), -1)
    changed = bench.consumer(JobSpec(type="mirror", columns=("price",), options={"where": "id>5"}))
    bench.shop.delete("id = 1")
    bench.apply(changed, 0)
    assert set(changed.columns) == {"region", "id", "section", "size", "note"}
    assert bench.rows(changed, "id", "note") == bench.source("id", "note")


def _dropped(rows: pa.Table) -> pa.Table:
    return rows.drop_columns(["note"])


def _retyped(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index("size"), "size", rows["size"].cast("string"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_dropped, "no column 'note' any more"),
        (_retyped, "column 'size' was bigint, is string"),
    ],
)
def test_a_used_column_that_is_gone_or_retyped_is_a_permanent_error_naming_it(
    bench: Bench, change: Callable[[pa.Table], pa.Table], says: str
) -> None:
    bench.apply(bench.consumer(MIRROR), -1)
    rows = change(bench.shop.rows(3))
    write_deltalake(bench.shop.uri, rows, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SourceColumnChanged, match=says) as refused:
        bench.consumer(MIRROR)
    assert refused.value.permanent


def test_a_column_that_is_added_does_not_change_the_index(bench: Bench) -> None:
    mirror = bench.consumer(JobSpec(type="mirror"))
    bench.apply(mirror, -1)
    rows = bench.shop.rows(2).append_column("extra", pa.array(["x", "y"]))
    write_deltalake(bench.shop.uri, rows, mode="append", schema_mode="merge")
    bench.apply(bench.consumer(JobSpec(type="mirror")), 0)
    assert "extra" not in bench.index(mirror).columns
    assert bench.rows(mirror, "region", "id", "at") == bench.source("region", "id", "at")


def test_a_lookup_by_value_or_range_reads_a_small_part_of_the_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Bench(spark, Shop.create(tmp_path / "shop", rows=32_000), tmp_path / "indexes")
    lookup = bench.consumer(JobSpec(type="lookup", columns=("note",), options={"by": "size"}))
    bench.apply(lookup, -1)
    index = bench.index(lookup)
    everything = files_read(index)
    assert everything >= 16
    assert files_read(index.where("size = 500")) <= 2
    assert files_read(index.where("size between 500 and 520")) <= 3
    assert index.where("size = 500").count() == len(
        [row for row in bench.source("size") if row == (500,)]
    )


def files_read(frame: DataFrame) -> int:
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()  # pyright: ignore
    leaves = plan.collectLeaves()
    scans = [leaves.apply(i) for i in range(leaves.size())]
    return sum(scan.metrics().apply("numFiles").value() for scan in scans)


@dataclass
class Watched:
    """Changes that count how often the table itself is read."""

    changes: Changes
    reads: int = 0

    def seen_from(self, session: SparkSession) -> Any:
        outer, seen = self, self.changes.seen_from(session)

        class Seen:
            def table_at_end(self) -> DataFrame:
                outer.reads += 1
                return seen.table_at_end()

            def __getattr__(self, name: str) -> Any:
                return getattr(seen, name)

        return Seen()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.changes, name)


def row(id_: int, section: str | None, price: str | None, **more: Any) -> dict[str, Any]:
    made = None if price is None else Decimal(price)
    return {"region": "eu", "id": id_, "section": section, "price": made, "size": 1, **more}


@dataclass
class Totals:
    """An aggregate over a few rows of known prices."""

    bench: Bench
    consumer: Consumer

    def apply(self, start: int) -> int:
        """Apply the newest window; return how often the table itself was read."""
        window = self.bench.shop.window(start)
        with retrieve(
            self.bench.spark, self.bench.shop.table, window, self.consumer.columns
        ) as changes:
            watched = Watched(changes)
            self.consumer.apply(watched, window)  # pyright: ignore[reportArgumentType]
        return watched.reads

    @property
    def groups(self) -> dict[Any, tuple[Any, ...]]:
        names = ("count", "sum_price", "avg_price", "min_price", "max_price")
        found = self.bench.index(self.consumer).select("section", *names).collect()
        return {r[0]: tuple(None if v is None else str(v) for v in r[1:]) for r in found}


@pytest.fixture
def totals(bench: Bench) -> Totals:
    bench.shop.delete("true")
    for id_, price in enumerate(("0.10", "0.20", "9.90"), start=1):
        bench.shop.add(row(id_, "a", price))
    bench.shop.add(row(4, None, "5.00"))
    spec = JobSpec(
        type="aggregate",
        options={
            "group_by": "section",
            "measures": "count,sum:price,avg:price,min:price,max:price",
        },
    )
    totals = Totals(bench, bench.consumer(spec))
    bench.apply(totals.consumer, -1)
    return totals


def test_groups_are_exact_in_decimals_and_null_is_a_group(totals: Totals) -> None:
    assert totals.groups == {
        "a": ("3", "10.20", "3.400000", "0.10", "9.90"),
        None: ("1", "5.00", "5.000000", "5.00", "5.00"),
    }


def test_a_row_that_moves_between_groups_leaves_one_and_joins_the_other(totals: Totals) -> None:
    head = totals.bench.shop.version
    totals.bench.shop.update({"section": "NULL"}, "id = 2")
    assert totals.apply(head) == 0
    assert totals.groups == {
        "a": ("2", "10.00", "5.000000", "0.10", "9.90"),
        None: ("2", "5.20", "2.600000", "0.20", "5.00"),
    }


def test_a_group_without_rows_vanishes(totals: Totals) -> None:
    head = totals.bench.shop.version
    totals.bench.shop.delete("id = 4")
    assert totals.apply(head) == 0
    assert set(totals.groups) == {"a"}


def test_a_group_whose_values_are_all_null_keeps_its_rows(totals: Totals) -> None:
    head = totals.bench.shop.version
    totals.bench.shop.update({"price": "NULL"}, "id = 4")
    totals.apply(head)
    assert totals.groups[None] == ("1", None, None, None, None)


def test_only_a_group_whose_extreme_left_is_read_again(totals: Totals) -> None:
    head = totals.bench.shop.version
    totals.bench.shop.delete("id = 3")
    totals.bench.shop.add(row(5, None, "7.00"))
    assert totals.apply(head) == 1
    assert totals.groups == {
        "a": ("2", "0.30", "0.150000", "0.10", "0.20"),
        None: ("2", "12.00", "6.000000", "5.00", "7.00"),
    }


def test_an_extreme_that_is_replaced_by_a_greater_one_needs_no_read(totals: Totals) -> None:
    head = totals.bench.shop.version
    totals.bench.shop.update({"price": "11.00"}, "id = 3")
    assert totals.apply(head) == 0
    assert totals.groups["a"] == ("3", "11.30", "3.766667", "0.10", "11.00")


def test_decimals_keep_every_digit(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(str(tmp_path / "shop"), pk=("id",))
    step = Decimal("0.000000000000000001")
    kind = pa.schema([("id", pa.int64()), ("g", pa.string()), ("x", pa.decimal128(38, 18))])

    def add(first: int, *values: Decimal) -> None:
        rows = [{"id": first + i, "g": "a", "x": value} for i, value in enumerate(values)]
        feed = {"delta.enableChangeDataFeed": "true"}
        table = pa.Table.from_pylist(rows, kind)
        write_deltalake(shop.uri, table, mode="append", configuration=feed)

    add(1, Decimal(1234567890) + step, Decimal(1))
    bench = Bench(spark, shop, tmp_path / "indexes")
    measures = {"group_by": "g", "measures": "sum:x,avg:x"}
    totals = bench.consumer(JobSpec(type="aggregate", options=measures))
    bench.apply(totals, -1)
    add(3, step, 4 * step)
    shop.delete("id = 2")
    bench.apply(totals, 0)
    frame = spark.read.format("delta").load(shop.uri)
    expected = frame.groupBy("g").agg({"x": "sum"}).collect()[0][1]
    assert bench.rows(totals, "sum_x") == [(expected,)]
    assert expected == Decimal("1234567890.000000000000000006")
    average = frame.groupBy("g").agg({"x": "avg"}).collect()
    assert bench.rows(totals, "avg_x") == [(average[0][1],)]


# No backquote: Delta itself can't update a table that has one in a column's name.
ODD = {"key": "the 'key.\" one", "by": "by,{x}", "value": "${value} = (1)"}


def odd_shop(spark: SparkSession, uri: str) -> tuple[Shop, dict[str, str]]:
    """A table with odd names: three rows at v1, then an update and an insert."""
    quoted = {name: quote_identifier(text) for name, text in ODD.items()}
    session, table = own_session(spark), quote_path_table(uri)
    rows = [("k1", "it's", 1, None), ("k'2", None, 2, "n"), ('k"3', "${x}", 4, "")]
    names = (*ODD.values(), "plain")
    session.createDataFrame(rows, ["a", "b", "c", "d"]).toDF(*names).createTempView("odd")
    mapped = "tblproperties ('delta.columnMapping.mode' = 'name')"
    for statement in (
        f"create table {table} using delta {mapped} as select * from odd",  # noqa: S608
        f"alter table {table} set tblproperties ('delta.enableChangeDataFeed' = 'true')",
        f"update {table} set {quoted['value']} = 10, plain = 'up' where {quoted['key']} = 'k1'",  # noqa: S608
        f"insert into {table} values ('new', '${{x}}', 5, null)",  # noqa: S608
    ):
        session.sql(statement)
    return Shop(uri, pk=(ODD["key"],)), quoted


def test_any_column_name_will_do(spark: SparkSession, tmp_path: Path) -> None:
    shop, quoted = odd_shop(spark, str(tmp_path / "odd"))
    bench = Bench(spark, shop, tmp_path / "indexes")
    specs = {
        "mirror": JobSpec(type="mirror", options={"where": f"{quoted['value']} <> 99"}),
        "lookup": JobSpec(type="lookup", options={"by": quoted["by"]}),
        "aggregate": JobSpec(
            type="aggregate",
            options={
                "group_by": quoted["by"],
                "measures": f"sum:{quoted['value']},max:{quoted['key']}",
            },
        ),
    }
    consumers = {name: bench.consumer(spec, name) for name, spec in specs.items()}
    for window in (Window(TS.zero(), ts(1)), Window(ts(1), ts(3))):
        for consumer in consumers.values():
            with retrieve(spark, shop.table, window, consumer.columns) as changes:
                consumer.apply(changes, window)
    rows = [
        ("k1", "it's", 10, "up"),
        ("k'2", None, 2, "n"),
        ('k"3', "${x}", 4, ""),
        ("new", "${x}", 5, None),
    ]
    for name in ("mirror", "lookup"):
        index = bench.index(consumers[name])
        assert comparable(index.select(*quoted.values(), "plain").collect()) == comparable(rows)
    groups = bench.index(consumers["aggregate"]).collect()
    assert comparable([tuple(group)[:3] for group in groups]) == comparable(
        [("it's", 10, "k1"), (None, 2, "k'2"), ("${x}", 9, "new")]
    )

"""The invariant: an index at watermark W equals a from-scratch build from the table at W.

One random history is driven through one index of each kind, all fed from one retrieval a window;
after every window each index is compared with plain SQL over the table at that version.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from iscp_dagster.consumers.base import Consumer, ConsumerResult, IndexPlace
from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.sources.changes import retrieve_or_snapshot
from iscp_dagster.sources.facts import read_facts
from iscp_dagster.stores.delta_ways import Way
from iscp_dagster_tests.consumers.shop import Shop, comparable, side_by_side
from iscp_dagster_tests.stores.test_delta_index import only_way

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

WAYS = (Way.DIRECT, Way.PATCH, Way.DIRECT, Way.MERGE, Way.REWRITE)
ANEW = 2
"""The direct window that writes indexes anew; the other one marks and appends."""
WINDOWS = 1 + len(WAYS)
COMMITS = 5

ALL = "region, id, section, grade, price, size, ratio, at, note"
MEASURED = (
    "count(*), sum(price), avg(price), min(price), max(price), sum(size), avg(size), "
    "max(at), min(note), count(grade), sum(ratio), avg(ratio)"
)
MEASURES = (
    "count,sum:price,avg:price,min:price,max:price,sum:size,avg:size,"
    "max:at,min:note,count:grade,sum:ratio,avg:ratio"
)
WHERE = "size > 200 and (note is null or note <> 'plain') or section = 'it''s'"
WHERE_SQL = "size > 200 and (note is null or note <> 'plain') or section = 'it\\'s'"


@dataclass(frozen=True)
class Case:
    """A spec, the columns to compare, and the same thing in plain SQL."""

    spec: JobSpec
    columns: str
    sql: str


def _measure_columns() -> str:
    return ", ".join(text.replace(":", "_") for text in MEASURES.split(","))


CASES = {
    "mirror": Case(JobSpec(type="mirror"), ALL, f"select {ALL} from source"),  # noqa: S608
    "mirror with a filter": Case(
        JobSpec(type="mirror", columns=("size", "note"), options={"where": WHERE}),
        "region, id, size, note",
        f"select region, id, size, note from source where {WHERE_SQL}",  # noqa: S608
    ),
    "lookup": Case(
        JobSpec(type="lookup", columns=("price",), options={"by": "section,grade"}),
        "region, id, section, grade, price",
        "select region, id, section, grade, price from source",
    ),
    "aggregate": Case(
        JobSpec(type="aggregate", options={"group_by": "section", "measures": MEASURES}),
        f"section, {_measure_columns()}",
        f"select section, {MEASURED} from source group by section",  # noqa: S608
    ),
    "aggregate of two columns with a filter": Case(
        JobSpec(
            type="aggregate",
            options={"group_by": "section,grade", "measures": MEASURES, "where": WHERE},
        ),
        f"section, grade, {_measure_columns()}",
        f"select section, grade, {MEASURED} from source "  # noqa: S608
        f"where {WHERE_SQL} group by section, grade",
    ),
}


@dataclass(frozen=True)
class Step:
    """One index after one window."""

    result: ConsumerResult
    index: list[Any]
    table: list[Any]


@pytest.fixture(scope="module")
def steps(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, list[Step]]]:
    """Drive the history through all cases, and the windows into the indexes in every way."""
    with pytest.MonkeyPatch.context() as patch:
        yield _steps(spark, tmp_path_factory, patch)


def _steps(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch
) -> dict[str, list[Step]]:
    home = tmp_path_factory.mktemp("invariant")
    shop = Shop.create(home / "source")
    facts = read_facts(shop.uri)
    consumers: dict[str, Consumer] = {}
    for number, (name, case) in enumerate(CASES.items()):
        place = IndexPlace(shop.table.key.job(f"j{number}"), number, str(home / f"i{number}"))
        consumers[name] = get_consumer_class(case.spec.type)(place, spark)
        consumers[name].prepare(case.spec, shop.table, facts)
    wanted = {column for consumer in consumers.values() for column in consumer.columns}
    found: dict[str, list[Step]] = {name: [] for name in CASES}
    start = -1
    for number in range(WINDOWS):
        if number > 0:  # the first is a snapshot
            only_way(WAYS[number - 1], patch, anew=number - 1 == ANEW)
        window = shop.window(start)
        with retrieve_or_snapshot(
            spark, shop.table, window, sorted(wanted), readers=len(consumers)
        ) as changes:
            results = side_by_side(consumers, changes, window)
        source = spark.read.format("delta").option("versionAsOf", window.end.version).load(shop.uri)
        source.createOrReplaceTempView("source")
        for name, case in CASES.items():
            index = spark.read.format("delta").load(consumers[name].place.uri)
            rows = index.selectExpr(*case.columns.split(", ")).collect()
            found[name].append(
                Step(results[name], comparable(rows), comparable(spark.sql(case.sql).collect()))
            )
        start = window.end.version
        for _ in range(COMMITS):
            shop.churn()
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("window", range(WINDOWS))
def test_an_index_equals_a_build_from_scratch_at_its_watermark(
    steps: dict[str, list[Step]], name: str, window: int
) -> None:
    step = steps[name][window]
    assert step.index == step.table
    assert step.table, "the history must not run empty"


@pytest.mark.parametrize("name", CASES)
def test_the_row_count_in_the_result_is_the_number_of_rows(
    steps: dict[str, list[Step]], name: str
) -> None:
    assert [step.result.row_count for step in steps[name]] == [
        len(step.index) for step in steps[name]
    ]


def test_the_history_holds_every_kind_of_change(steps: dict[str, list[Step]]) -> None:
    done = [step.result for step in steps["lookup"][1:]]
    assert all(sum(getattr(r, field) for r in done) for field in (
        "rows_upserted", "rows_deleted", "rows_skipped",
    ))  # fmt: skip

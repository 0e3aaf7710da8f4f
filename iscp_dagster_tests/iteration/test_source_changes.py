"""The table changes its schema, loses its history, goes away or becomes another one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from iscp_dagster import api
from iscp_dagster.cli.main import main
from iscp_dagster.maintenance.flush import flush_watermarks
from iscp_dagster.rules.model import IterationKind, JobState
from iscp_dagster.spark.sql import own_session, quote_path_table
from iscp_dagster_tests.iteration.shelf import SHELF, Shelf
from iscp_dagster_tests.iteration.works import Works, meanwhile, windows_in
from iscp_dagster_tests.orchestration.house import now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def _shelves() -> dict[str, Shelf]:
    return {}


@pytest.fixture
def shelf(works: Works, _shelves: dict[str, Shelf]) -> Shelf:
    """A table that lives through all changes of its schema, caught up."""
    if "shelf" not in _shelves:
        _shelves["shelf"] = Shelf(works, "shelf")
    return _shelves["shelf"].synced()


def test_an_added_column_changes_nothing_for_the_index(shelf: Shelf, spark: SparkSession):
    before = shelf.head
    shelf.write(SHELF.append(pa.field("more", pa.string())), 4, mode="append")
    assert shelf.works.sync("shelf").behind == ()
    assert shelf.last_iteration() == (IterationKind.TAIL, before, shelf.head)
    assert (4, "s4", 4) in shelf.index(spark)


def _drop(shelf: Shelf, _: SparkSession) -> None:
    shelf.write(SHELF.remove(2), 1, 2, 5)


def _retype(shelf: Shelf, _: SparkSession) -> None:
    shelf.write(SHELF.set(2, pa.field("price", pa.float64())), 1, 2, 5)


def _rename(shelf: Shelf, spark: SparkSession) -> None:
    place = quote_path_table(shelf.uri)
    spark.sql(
        f"alter table {place} set tblproperties ('delta.columnMapping.mode' = 'name', "
        "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
    )
    spark.sql(f"alter table {place} rename column price to cost")
    spark.sql(f"update {place} set cost = cost + 100 where id = 1")  # noqa: S608 - quoted


def _rename_back(shelf: Shelf, spark: SparkSession) -> None:
    spark.sql(f"alter table {quote_path_table(shelf.uri)} rename column cost to price")


def _as_before(shelf: Shelf, _: SparkSession) -> None:
    shelf.write(SHELF, 1, 2, 6)


@pytest.mark.parametrize(
    ("spoil", "says", "mend", "then"),
    [
        (_drop, "has no column 'price' any more", _as_before, [1, 2, 6]),
        (_retype, "column 'price' was bigint, is double", _as_before, [1, 2, 6]),
        (_rename, "has no column 'price' any more", _rename_back, [2, 6, 101]),
    ],
)
def test_a_used_column_that_changes_stops_the_job_until_it_is_back_and_repaired(
    shelf: Shelf,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Shelf, SparkSession], None],
    says: str,
    mend: Callable[[Shelf, SparkSession], None],
    then: list[int],
):
    stands, rows = shelf.job.watermark, shelf.index(spark)
    spoil(shelf, spark)
    assert [str(job.key) for job, _ in shelf.works.sync("shelf").behind] == ["sys/shop/shelf/look"]
    job = shelf.job
    assert (job.state, job.status.error_code) == (JobState.ERROR, 10_033)
    assert says in job.status.error_msg
    assert (job.watermark, shelf.index(spark)) == (stands, rows)

    mend(shelf, spark)
    assert shelf.works.sync("shelf").iterations == 0
    with pytest.raises(SystemExit) as exited:
        main(["repair", "shop.shelf", "look"])
    assert exited.value.code == 0, capsys.readouterr().err
    assert shelf.works.sync("shelf").behind == ()
    _, start, end = shelf.last_iteration()
    assert (start, end) == (stands.version, shelf.head)
    assert sorted(price for _, _, price in shelf.index(spark)) == then


def test_history_that_is_lost_in_the_middle_of_a_run_turns_it_into_a_snapshot(
    works: Works, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    shelf = Shelf(works, "lost").synced()
    delta = DeltaTable(shelf.uri)
    delta.update(updates={"price": "price + 10"}, predicate="id = 1")
    delta.delete("id = 2")
    stands, head = shelf.job.watermark.version, shelf.head
    monkeypatch.setenv("ISCP_FAULT", "pause@after_claim")
    with meanwhile(lambda: works.sync("lost"), "after_claim"):
        vacuum(spark, shelf.uri)
        assert not list((works.house.path("lost") / "_change_data").glob("*.parquet"))
        monkeypatch.delenv("ISCP_FAULT")
    assert shelf.last_iteration() == (IterationKind.SNAPSHOT, stands, head)
    job = shelf.job
    assert (job.state, job.attempt, job.watermark.version) == (JobState.COMPLETED, 0, head)
    assert shelf.index(spark) == [(1, "s1", 11), (3, "s3", 3)]


def test_a_rewrite_that_the_log_has_passed_and_the_index_has_not_is_no_gap(
    shelf: Shelf, spark: SparkSession
):
    stands = shelf.head
    works = shelf.works
    spark.sql(f"alter table {quote_path_table(shelf.uri)} set tblproperties ('seen' = 'yes')")
    assert flush_watermarks(works.house.log, [], now()) >= 1
    assert shelf.job.watermark.version == stands + 1
    spark.sql(f"delete from {quote_path_table(shelf.uri)} where id = 2")  # noqa: S608 - quoted
    assert works.sync("shelf").behind == ()
    assert shelf.last_iteration() == (IterationKind.TAIL, stands + 1, stands + 2)
    last = windows_in(works.uri(shelf.job))[-1]
    assert (last.start.version, last.end.version) == (stands, stands + 2)
    assert 2 not in [row[0] for row in shelf.index(spark)]


def vacuum(spark: SparkSession, uri: str) -> None:
    """Remove every file that the newest version does not need."""
    session = own_session(spark)
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
    session.sql(f"vacuum {quote_path_table(uri)} retain 0 hours")


def test_a_table_that_goes_away_under_a_run_or_becomes_another_is_a_permanent_error(
    works: Works, monkeypatch: pytest.MonkeyPatch
):
    shelf = Shelf(works, "gone").synced()
    shelf.write(SHELF, 4, mode="append")
    stands = shelf.job.watermark
    monkeypatch.setenv("ISCP_FAULT", "pause@after_claim")
    with meanwhile(lambda: works.sync("gone"), "after_claim"):
        shutil.rmtree(shelf.uri)
        monkeypatch.delenv("ISCP_FAULT")
    job = shelf.job
    assert (job.state, job.status.error_code) == (JobState.ERROR, 10_030)
    assert "sys/shop/gone" in job.status.error_msg
    assert job.watermark == stands

    shelf.write(SHELF, 7)
    shelf.write(SHELF, 8, mode="append")
    assert api.repair_job("shop.gone", "look", log=works.house.log)
    _, told = works.by_hand(works.house.window(0, 1, "gone"), "look", table="gone")
    assert "another table" in told
    job = shelf.job
    assert (job.state, job.status.error_code) == (JobState.ERROR, 10_031)
    assert DeltaTable(works.uri(job)).version() == 1
    assert api.unregister_job("shop.gone", "look", log=works.house.log)
    assert api.drop_table("shop.gone", log=works.house.log)

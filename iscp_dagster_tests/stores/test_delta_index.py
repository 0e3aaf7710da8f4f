"""A window and its watermark in one commit: replays, late writers, rivals, lost logs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from iscp_dagster.errors import IndexContended
from iscp_dagster.rules.model import TS, Window
from iscp_dagster.spark.sql import own_session
from iscp_dagster.stores import delta_ways
from iscp_dagster.stores.delta_index import DeltaIndex, Standing
from iscp_dagster.stores.delta_ways import GONE, Batch, Way, choose_way
from iscp_dagster_tests.consumers.shop import ts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

BUILD = {"type": "test", "source": {"id": "bigint"}}


def window(start: int, end: int) -> Window:
    return Window(TS.zero() if start < 0 else ts(start), ts(end))


def frame(session: SparkSession, rows: dict[int, str], gone: bool | None = None) -> DataFrame:
    made = session.createDataFrame(list(rows.items()), "id bigint, a string")
    return made if gone is None else made.selectExpr("*", f"{str(gone).lower()} as {GONE}")


def content(spark: SparkSession, index: DeltaIndex) -> dict[int, str]:
    return {row["id"]: row["a"] for row in spark.read.format("delta").load(index.uri).collect()}


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    return own_session(spark)


@pytest.fixture
def index(session: SparkSession, tmp_path: Path) -> DeltaIndex:
    """An index of one row that stands at v5."""
    made = DeltaIndex(str(tmp_path / "index"), 3)
    made.create(session, frame(session, {}), BUILD, ["id"])
    made.replace(frame(session, {1: "five"}), window(-1, 5))
    return made


def only_way(way: Way, monkeypatch: pytest.MonkeyPatch, *, anew: bool = False) -> None:
    """Move the limits so that every window is applied in one way.

    Args:
        way: Which one.
        monkeypatch: Moves the limits back.
        anew: Of the two forms of a direct window, the one that writes the whole index anew.
    """
    everything = 10**9
    monkeypatch.setattr(delta_ways, "SMALL_INDEX", everything if way is Way.REWRITE else -1)
    monkeypatch.setattr(delta_ways, "SHARE_TO_REWRITE", everything if anew else -1)
    monkeypatch.setattr(delta_ways, "MOST_PATCHED", everything if way is Way.PATCH else -1)
    texts = everything if way is Way.DIRECT else -1
    monkeypatch.setattr(delta_ways, "MOST_DIRECT_BYTES", texts)
    monkeypatch.setattr(delta_ways, "MOST_DIRECT", texts)


@pytest.fixture(params=list(Way))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    """Has every window applied in one way, whatever would be the cheapest."""
    only_way(request.param, monkeypatch)
    return request.param


def apply(
    session: SparkSession, index: DeltaIndex, span: Window, rows: dict[int, str], gone: bool = False
) -> Way:
    standing = index.standing()
    assert standing is not None
    made = frame(session, rows, gone)
    fetched = made.toArrow() if delta_ways.may_be_direct(len(rows), 0) else None
    upserts = 0 if gone else len(rows)
    batch = Batch(made, ("id",), ("id",), len(rows), upserts, fetched=fetched)
    return index.apply(session, batch, span, Standing(standing.version, span.start, standing.rows))


def test_the_way_depends_on_how_much_of_the_index_changes() -> None:
    assert choose_way(1, 100) is Way.REWRITE
    assert choose_way(66_000, 63_000) is Way.REWRITE
    assert choose_way(5_000, 1_000_000) is Way.PATCH
    assert choose_way(50_000, 1_000_000) is Way.MERGE
    assert choose_way(5_000, None) is Way.PATCH


def test_what_is_deleted_and_what_is_updated_is_counted(
    spark: SparkSession, session: SparkSession, index: DeltaIndex, way: Way
) -> None:
    apply(session, index, window(5, 8), {2: "two", 3: 'it\'s \\ "three"'})
    apply(session, index, window(8, 9), {1: "", 3: "", 7: "never there"}, gone=True)
    apply(session, index, window(9, 12), {2: "again", 4: "four"})
    standing = index.standing()
    assert standing is not None
    assert (standing.watermark, standing.rows) == (ts(12), 2)
    assert content(spark, index) == {2: "again", 4: "four"}


def test_no_index_has_no_standing(tmp_path: Path) -> None:
    assert DeltaIndex(str(tmp_path / "none"), 1).standing() is None
    assert DeltaIndex(str(tmp_path / "none"), 1).build() is None


def test_an_index_that_was_only_made_stands_at_zero(session: SparkSession, tmp_path: Path) -> None:
    index = DeltaIndex(str(tmp_path / "index"), 3)
    index.create(session, frame(session, {}), BUILD, ["id"])
    assert index.standing() == Standing(0, TS.zero(), 0)
    assert index.build() == BUILD


def test_data_and_watermark_come_in_one_commit(
    spark: SparkSession, session: SparkSession, index: DeltaIndex, way: Way
) -> None:
    before = DeltaTable(index.uri).version()
    assert apply(session, index, window(5, 8), {2: "eight"}) is way
    assert DeltaTable(index.uri).version() == before + 1
    standing = index.standing()
    assert standing is not None
    assert str(standing.watermark) == str(ts(8))
    assert content(spark, index) == {1: "five", 2: "eight"}
    assert standing.rows == 2


@pytest.mark.parametrize("span", [window(5, 8), window(5, 7), window(-1, 3)])
def test_a_replay_or_a_late_writer_of_an_older_window_changes_nothing(
    spark: SparkSession, session: SparkSession, index: DeltaIndex, span: Window, way: Way
) -> None:
    assert apply(session, index, window(5, 8), {2: "eight"}) is way
    before = DeltaTable(index.uri).version()
    apply(own_session(spark), index, span, {2: "late", 3: "late"})
    index.replace(frame(session, {9: "late"}), span)
    assert DeltaTable(index.uri).version() == before
    assert content(spark, index) == {1: "five", 2: "eight"}


def test_a_snapshot_replaces_everything_in_one_commit(
    spark: SparkSession, session: SparkSession, index: DeltaIndex
) -> None:
    before = DeltaTable(index.uri).version()
    index.replace(frame(session, {7: "new"}), window(5, 9))
    assert DeltaTable(index.uri).version() == before + 1
    assert content(spark, index) == {7: "new"}
    standing = index.standing()
    assert standing is not None
    assert (standing.watermark, standing.rows) == (ts(9), 1)


def test_an_empty_window_moves_only_the_watermark(
    spark: SparkSession, session: SparkSession, index: DeltaIndex
) -> None:
    before = index.standing()
    assert before is not None
    for version in range(5, 16):  # far enough for a checkpoint
        standing = index.standing()
        assert standing is not None
        index.advance(session, window(version, version + 1), standing)
    apply(session, index, window(16, 20), {2: "twenty"})
    standing = index.standing()
    assert standing is not None
    assert (standing.watermark, standing.rows, standing.broken) == (ts(20), 2, False)
    assert content(spark, index) == {1: "five", 2: "twenty"}
    assert list((Path(index.uri) / "_delta_log").glob("*.checkpoint.parquet"))
    with pytest.raises(IndexContended):
        index.advance(session, window(5, 30), before)


def test_of_two_writers_at_once_one_loses(
    spark: SparkSession, session: SparkSession, index: DeltaIndex, way: Way
) -> None:
    start = threading.Barrier(2)
    lost: list[Exception] = []

    stood_at = DeltaTable(index.uri).version()

    def write(end: int) -> None:
        own = own_session(spark)
        start.wait()
        try:
            apply(own, index, window(5, end), {2: f"v{end}"})
        except IndexContended as error:
            lost.append(error)

    rivals = [threading.Thread(target=write, args=(8,)) for _ in range(2)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    # The loser found the transaction done, or lost the race for the commit; never both wrote.
    assert len(lost) <= 1
    assert DeltaTable(index.uri).version() == stood_at + 1
    assert content(spark, index) == {1: "five", 2: "v8"}


def test_a_window_that_does_not_follow_the_last_one_breaks_the_index_until_a_snapshot(
    session: SparkSession, index: DeltaIndex, way: Way
) -> None:
    """A late writer's (5, 8] got in between the other's look at v5 and its commit of (5, 10]."""
    apply(session, index, window(5, 8), {2: "eight"})
    apply(session, index, window(5, 10), {3: "ten"})
    standing = index.standing()
    assert standing is not None
    assert standing.broken
    assert standing.watermark.is_zero
    index.replace(frame(session, {1: "whole"}), window(-1, 11))
    healed = index.standing()
    assert healed is not None
    assert (healed.broken, healed.watermark) == (False, ts(11))


def test_another_generation_has_another_transaction_id(
    session: SparkSession, index: DeltaIndex
) -> None:
    other = DeltaIndex(index.uri, 4).standing()
    assert other is not None
    assert other.watermark.is_zero


def test_the_watermark_outlives_the_log(session: SparkSession, index: DeltaIndex) -> None:
    apply(session, index, window(5, 8), {2: "eight"})
    table = DeltaTable(index.uri)
    table.create_checkpoint()
    for commit in (Path(index.uri) / "_delta_log").glob("*.json"):
        commit.unlink()
    standing = index.standing()
    assert standing is not None
    assert (standing.watermark.version, standing.rows, standing.broken) == (8, None, False)


def test_side_by_side_commits_keep_their_own_transaction_ids(
    spark: SparkSession, tmp_path: Path
) -> None:
    ends = {number: 5 + number for number in range(1, 5)}

    def build(number: int, end: int) -> None:
        own, made = own_session(spark), DeltaIndex(str(tmp_path / str(number)), number)
        made.create(own, frame(own, {}), BUILD, ["id"])
        made.replace(frame(own, {1: "a"}), window(-1, 4))
        apply(own, made, window(4, end), {2: "b"})

    threads = [threading.Thread(target=build, args=pair) for pair in ends.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, end in ends.items():
        standing = DeltaIndex(str(tmp_path / str(number)), number).standing()
        assert standing is not None
        assert (standing.watermark, standing.rows) == (ts(end), 2)


def test_dropping_removes_the_files_and_is_fine_twice(index: DeltaIndex) -> None:
    index.drop()
    assert not Path(index.uri).exists()
    index.drop()

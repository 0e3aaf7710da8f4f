from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp_dagster.errors import (
    HistoryLost,
    SourceColumnChanged,
    SourceTableMissing,
    WindowUnavailable,
)
from iscp_dagster.rules.model import TS, Table, TableKey, Window
from iscp_dagster.sources.changes import ChangeKind, Changes, retrieve, retrieve_or_snapshot
from iscp_dagster.spark.sql import own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FEED = {"delta.enableChangeDataFeed": "true"}


class Letters:
    """A table of four rows, changed through delta-rs."""

    def __init__(self, path: Path, **configuration: str) -> None:
        self.uri = str(path)
        rows = pa.table({"id": [1, 2, 3, 4], "a": list("abcd"), "b": list("wxyz")})
        write_deltalake(self.uri, rows, configuration=configuration or FEED)

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(self.uri)

    @property
    def table(self) -> Table:
        key = TableKey("sys", "db", "letters")
        return Table(key, 1, self.uri, ("id",), "any", datetime(2026, 1, 1, tzinfo=UTC))

    def window(self, start: int, end: int | None = None) -> Window:
        first = TS.zero() if start < 0 else TS(start)
        return Window(first, TS(self.delta.version() if end is None else end))

    def add(self, id_: int, a: str) -> None:
        write_deltalake(self.uri, pa.table({"id": [id_], "a": [a], "b": ["n"]}), mode="append")

    def update(self, where: str, **changes: str) -> None:
        self.delta.update(updates=changes, predicate=where)

    def delete(self, where: str) -> None:
        self.delta.delete(where)


@pytest.fixture
def letters(tmp_path: Path) -> Letters:
    return Letters(tmp_path / "letters")


def rows(frame: DataFrame | None, *names: str) -> list[tuple[Any, ...]]:
    assert frame is not None
    return sorted(tuple(row) for row in frame.select(*names).collect())


def effect(spark: SparkSession, source: Letters, window: Window) -> dict[str, list[Any]]:
    with retrieve(spark, source.table, window, ["a"]) as changes:
        assert changes.kind is ChangeKind.TAIL
        return {
            "upserts": rows(changes.upserts, "id", "a", "_ts"),
            "deletes": rows(changes.deletes, "id", "_ts"),
            "before": rows(changes.before, "id", "a"),
        }


def test_from_zero_the_table_at_the_end_is_read(spark: SparkSession, letters: Letters) -> None:
    letters.delete("id = 4")
    letters.add(5, "late")
    with retrieve(spark, letters.table, letters.window(-1, 1), ["a"]) as changes:
        assert changes.kind is ChangeKind.SNAPSHOT
        assert rows(changes.upserts, "id", "a", "_ts") == [(1, "a", 1), (2, "b", 1), (3, "c", 1)]
        assert changes.deletes.count() == 0
        assert changes.before is None
        assert (changes.rows_scanned, changes.columns) == (3, ("id", "a"))


def test_the_last_change_of_a_key_wins(spark: SparkSession, letters: Letters) -> None:
    letters.update("id = 1", a="'first'")
    letters.update("id = 1", a="'second'")
    found = effect(spark, letters, letters.window(0))
    assert found == {"upserts": [(1, "second", 2)], "deletes": [], "before": [(1, "a")]}


def test_a_row_that_came_and_went_is_a_delete_without_a_before(
    spark: SparkSession, letters: Letters
) -> None:
    letters.add(9, "short")
    letters.delete("id = 9")
    found = effect(spark, letters, letters.window(0))
    assert found == {"upserts": [], "deletes": [(9, 2)], "before": []}


def test_a_row_that_went_and_came_back_is_an_upsert(spark: SparkSession, letters: Letters) -> None:
    letters.delete("id = 2")
    letters.add(2, "again")
    found = effect(spark, letters, letters.window(0))
    assert found == {"upserts": [(2, "again", 2)], "deletes": [], "before": [(2, "b")]}


def test_a_changed_key_is_a_delete_and_an_insert(spark: SparkSession, letters: Letters) -> None:
    letters.update("id = 3", id="30")
    found = effect(spark, letters, letters.window(0))
    assert found == {"upserts": [(30, "c", 1)], "deletes": [(3, 1)], "before": [(3, "c")]}


def test_keys_that_shift_at_one_version_keep_their_last_owner(
    spark: SparkSession, letters: Letters
) -> None:
    letters.update("true", id="id + 1")
    found = effect(spark, letters, letters.window(0))
    assert found["upserts"] == [(2, "a", 1), (3, "b", 1), (4, "c", 1), (5, "d", 1)]
    assert found["deletes"] == [(1, 1)]


def test_each_version_is_in_exactly_one_of_two_adjoining_windows(
    spark: SparkSession, letters: Letters
) -> None:
    for id_ in (1, 2, 3):
        letters.update(f"id = {id_}", a="'new'")
    first = effect(spark, letters, letters.window(0, 2))["upserts"]
    second = effect(spark, letters, letters.window(2, 3))["upserts"]
    assert (first, second) == ([(1, "new", 1), (2, "new", 2)], [(3, "new", 3)])


def test_a_rewrite_without_changes_is_no_change(spark: SparkSession, letters: Letters) -> None:
    letters.add(5, "e")
    letters.delta.optimize.compact()
    with retrieve(spark, letters.table, letters.window(1), ["a"]) as changes:
        assert (changes.rows_scanned, changes.rows_net) == (0, 0)


def test_an_end_above_the_newest_version_is_refused(spark: SparkSession, letters: Letters) -> None:
    letters.add(5, "e")
    with (
        pytest.raises(WindowUnavailable, match="v7"),
        retrieve(spark, letters.table, letters.window(0, 7), ["a"]),
    ):
        pass


def _feed_was_off(source: Letters) -> None:
    source.delta.alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    source.update("id = 1", a="'unseen'")
    source.delta.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})


def _vacuumed(source: Letters) -> None:
    source.update("id = 1", a="'unseen'")
    shutil.rmtree(Path(source.uri) / "_change_data")


def _log_cleaned(source: Letters) -> None:
    for letter in "xyz":
        source.update("id = 1", a=f"'{letter}'")
    source.delta.create_checkpoint()
    for version in (0, 1, 2):
        (Path(source.uri) / "_delta_log" / f"{version:020d}.json").unlink()


@pytest.mark.parametrize("lose", [_feed_was_off, _vacuumed, _log_cleaned])
def test_lost_history_turns_into_a_snapshot(
    spark: SparkSession, letters: Letters, lose: Callable[[Letters], None]
) -> None:
    lose(letters)
    letters.update("id = 2", a="'seen'")
    window = letters.window(0)
    with pytest.raises(HistoryLost), retrieve(spark, letters.table, window, ["a"]):
        pass
    with retrieve_or_snapshot(spark, letters.table, window, ["a"], readers=2) as changes:
        assert changes.kind is ChangeKind.SNAPSHOT
        assert (2, "seen", window.end.version) in rows(changes.upserts, "id", "a", "_ts")
        assert changes.upserts.count() == 4


def test_a_table_that_is_gone_is_named(spark: SparkSession, letters: Letters) -> None:
    window = letters.window(-1)
    shutil.rmtree(letters.uri)
    with (
        pytest.raises(SourceTableMissing, match="sys/db/letters"),
        retrieve(spark, letters.table, window, ["a"]),
    ):
        pass


def test_a_used_column_that_is_gone_is_named(spark: SparkSession, letters: Letters) -> None:
    with (
        pytest.raises(SourceColumnChanged, match="'gone'"),
        retrieve(spark, letters.table, letters.window(-1), ["a", "gone"]),
    ):
        pass


def test_a_column_that_is_added_within_the_window_does_not_matter(
    spark: SparkSession, letters: Letters
) -> None:
    letters.update("id = 1", a="'new'")
    wider = pa.table({"id": [5], "a": ["e"], "b": ["n"], "c": ["more"]})
    write_deltalake(letters.uri, wider, mode="append", schema_mode="merge")
    found = effect(spark, letters, letters.window(0))
    assert found["upserts"] == [(1, "new", 1), (5, "e", 2)]


def test_all_readers_share_one_scan_of_the_table(spark: SparkSession, letters: Letters) -> None:
    letters.update("id < 3", a="'new'")
    for window in (letters.window(0), letters.window(-1)):
        away = Path(letters.uri).with_name("away")
        with retrieve(spark, letters.table, window, ["a"], readers=3) as changes:
            Path(letters.uri).rename(away)
            try:
                counts = [changes.seen_from(own_session(spark)).upserts.count() for _ in range(3)]
            finally:
                away.rename(letters.uri)
        assert counts == [changes.rows_net] * 3


@pytest.mark.parametrize("fails", [False, True])
def test_the_changes_are_released_however_the_iteration_ends(
    spark: SparkSession, letters: Letters, fails: bool
) -> None:
    letters.update("id < 3", a="'new'")
    kept: list[Changes] = []

    def iterate() -> None:
        with retrieve(spark, letters.table, letters.window(0), ["a"], readers=2) as changes:
            kept.append(changes)
            assert persisted(spark) > before
            if fails:
                raise InterruptedError

    before = persisted(spark)
    if fails:
        with pytest.raises(InterruptedError):
            iterate()
    else:
        iterate()
    assert persisted(spark) == before
    assert not spark.catalog.tableExists(f"global_temp.{kept[0].view}")


def persisted(spark: SparkSession) -> int:
    return len(json.loads(str(list(spark.sparkContext._jsc.getPersistentRDDs().keySet()))))  # pyright: ignore

"""Tests of the transactional load: duplicates, repetition, and loads at once."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from iscp_dagster.cli.tables import table as table_command
from iscp_dagster.errors import SourceTableMissing, SourceTableReplaced, UnknownTable, UsageError
from iscp_dagster.settings import Settings
from iscp_dagster.sources.load import LoadReport, load_files
from iscp_dagster_tests.sources.shelf import (
    FORMATS,
    NAME,
    SIMPLE,
    Shelf,
    at_once,
    doc,
    spark_test,
)

BATCH = [doc(2, "first"), doc(3, "c"), doc(2, "last"), doc(4, None)]


@pytest.fixture
def shelf(tmp_path: Path, settings: Settings) -> Shelf:
    return Shelf(tmp_path, settings)


@spark_test
@pytest.mark.parametrize("file_format", FORMATS)
def test_skip_keeps_the_first_row_of_a_key_and_what_the_table_has(
    shelf: Shelf, file_format: str
) -> None:
    shelf.create([doc(1, "a"), doc(3, "old")])
    report = shelf.load(shelf.write(file_format, BATCH), on_duplicate="skip")
    assert shelf.bodies() == {1: "a", 2: "first", 3: "old", 4: None}
    assert (report.rows_read, report.inserted, report.replaced, report.skipped) == (4, 2, 0, 2)
    assert report.version == shelf.version == 1


@spark_test
@pytest.mark.parametrize("file_format", FORMATS)
def test_replace_takes_the_last_row_of_a_key(shelf: Shelf, file_format: str) -> None:
    shelf.create([doc(1, "a"), doc(3, "old"), doc(4, "old")])
    report = shelf.load(shelf.write(file_format, BATCH), on_duplicate="replace")
    assert shelf.bodies() == {1: "a", 2: "last", 3: "c", 4: None}
    assert (report.rows_read, report.inserted, report.replaced, report.skipped) == (4, 1, 2, 1)
    assert report.version == shelf.version == 1


@spark_test
@pytest.mark.parametrize("file_format", FORMATS)
def test_error_loads_new_keys_and_refuses_known_ones(shelf: Shelf, file_format: str) -> None:
    shelf.create([doc(1, "a")])
    new = shelf.write(file_format, [doc(2, "b"), doc(3, "c")], "new")
    assert shelf.load(new).inserted == 2
    assert shelf.bodies() == {1: "a", 2: "b", 3: "c"}
    again = shelf.write(file_format, [doc(9, "x"), doc(3, "y")], "again")
    assert 'has key {"id":3} already' in shelf.refused(again)


@spark_test
def test_error_refuses_a_batch_that_has_a_key_twice(shelf: Shelf) -> None:
    shelf.create()
    assert 'key {"id":2} is there twice' in shelf.refused(shelf.write("json", BATCH))


@spark_test
def test_the_order_of_the_files_decides_not_their_size_or_name(shelf: Shelf) -> None:
    shelf.create()
    small = shelf.write("json", [doc(1, "small")], "z")
    large = shelf.write("json", [doc(1, "large"), *(doc(i, "x" * 200) for i in range(2, 300))], "a")
    shelf.load(small, large, on_duplicate="skip")
    assert shelf.bodies()[1] == "small"
    shelf.load(small, large, on_duplicate="replace")
    assert shelf.bodies()[1] == "large"


@spark_test
def test_repeating_a_load_changes_nothing(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shelf.create([doc(1, "a")])
    file = shelf.write("csv", [doc(1, "b"), doc(2, "c")])
    first = shelf.load(file, on_duplicate="replace", load_id="monday")
    assert (first.replaced, first.inserted, first.already_loaded) == (1, 1, False)
    shelf.write("csv", [doc(1, "changed")])
    Path(file).unlink()
    # No Spark can start with this: the answer comes without it.
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    monkeypatch.setenv("ISCP_HOME", str(shelf.settings.home))
    again = load_files(NAME, [file], on_duplicate="replace", load_id="monday")
    assert again.already_loaded
    assert (again.rows_read, again.inserted, again.replaced, again.skipped) == (0, 0, 0, 0)
    assert again.version == shelf.version == 1
    assert shelf.bodies() == {1: "b", 2: "c"}


@spark_test
def test_another_load_id_or_none_is_another_load(shelf: Shelf) -> None:
    shelf.create()
    file = shelf.write("json", [doc(1, "a")])
    shelf.load(file, load_id="one")
    assert "already" in shelf.refused(file, load_id="two")
    nameless = shelf.load(file, on_duplicate="skip")
    assert (nameless.skipped, nameless.version, nameless.already_loaded) == (1, 1, False)


@spark_test
def test_a_load_that_changes_nothing_is_remembered_all_the_same(shelf: Shelf) -> None:
    shelf.create([doc(1, "a")])
    empty = shelf.file("empty.json", "")
    assert shelf.load(empty, load_id="empty").rows_read == 0
    assert shelf.load(empty, load_id="empty").already_loaded
    header = shelf.file("header.csv", "id,body\n")
    assert shelf.load(header, load_id="header").rows_read == 0
    assert shelf.load(header, load_id="header").already_loaded
    assert shelf.bodies() == {1: "a"}


@spark_test
def test_the_change_feed_shows_a_load_as_one_version(shelf: Shelf) -> None:
    shelf.create([doc(1, "a"), doc(2, "b")])
    files = [shelf.write("json", [doc(i, "new") for i in (i, i + 10)], f"f{i}") for i in range(4)]
    report = shelf.load(*files, on_duplicate="replace", load_id="feed")
    feed = pa.table(DeltaTable(shelf.uri).load_cdf(starting_version=1).read_all()).to_pylist()
    assert {row["_commit_version"] for row in feed} == {report.version} == {1}
    changes = sorted((row["id"], row["_change_type"]) for row in feed)
    updates = [(i, kind) for i in (1, 2) for kind in ("update_postimage", "update_preimage")]
    inserts = [(i, "insert") for i in (0, 3, 10, 11, 12, 13)]
    assert changes == sorted(updates + inserts)
    mark = json.loads(DeltaTable(shelf.uri).history(1)[0]["userMetadata"])
    assert mark["iscp_load"] == "feed"


@spark_test
@pytest.mark.parametrize("on_duplicate", ["skip", "replace"])
def test_loads_at_once_never_leave_a_key_twice(shelf: Shelf, on_duplicate: str) -> None:
    shelf.create()
    files = [
        shelf.write("json", [doc(key, f"{n}") for key in range(n, n + 4)], f"f{n}")
        for n in range(3)
    ]
    reports = at_once([lambda f=f: shelf.load(f, on_duplicate=on_duplicate) for f in files])
    assert shelf.bodies().keys() == set(range(6))
    assert sum(report.inserted for report in reports) == 6
    if on_duplicate == "replace":
        last = max(reports, key=lambda report: report.version)
        winner = reports.index(last)
        assert [shelf.bodies()[key] for key in range(winner, winner + 4)] == [f"{winner}"] * 4


@spark_test
def test_of_loads_at_once_that_want_one_key_for_themselves_one_wins(shelf: Shelf) -> None:
    shelf.create([doc(0, "there")])
    files = [shelf.write("json", [doc(1, f"{n}"), doc(10 + n, "own")], f"f{n}") for n in range(2)]

    def attempt(file: str) -> LoadReport | str:
        try:
            return shelf.load(file)
        except UsageError as error:
            return str(error)

    outcomes = at_once([lambda f=f: attempt(f) for f in files])
    won = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, LoadReport)]
    assert len(won) == 1
    assert all('has key {"id":1} already' in lost for lost in outcomes if isinstance(lost, str))
    assert shelf.bodies() == {0: "there", 1: f"{won[0]}", 10 + won[0]: "own"}
    assert shelf.version == 1


@spark_test
def test_one_load_id_at_once_is_loaded_once(shelf: Shelf) -> None:
    shelf.create()
    file = shelf.write("json", [doc(1, "a")])
    reports = at_once([lambda: shelf.load(file, on_duplicate="replace", load_id="x")] * 2)
    assert sorted(report.already_loaded for report in reports) == [False, True]
    assert shelf.version == 1
    assert shelf.bodies() == {1: "a"}


@pytest.mark.parametrize("load_id", ["", "a/b", "../x", "it's", "a\nb", "-x"])
def test_a_load_id_is_a_name(shelf: Shelf, load_id: str) -> None:
    shelf.create()
    assert "load-id" in shelf.refused(shelf.write("csv", []), load_id=load_id)


def test_the_table_must_still_be_the_recorded_one(shelf: Shelf, tmp_path: Path) -> None:
    shelf.create([doc(1, "a")])
    file = shelf.write("csv", [doc(2, "b")])
    (tmp_path / "table").rename(tmp_path / "moved")
    with pytest.raises(SourceTableMissing):
        shelf.load(file)
    write_deltalake(shelf.uri, pa.Table.from_pylist([dict(doc(1, "other"))], schema=SIMPLE))
    with pytest.raises(SourceTableReplaced):
        shelf.load(file)
    assert shelf.version == 0
    with pytest.raises(UnknownTable):
        load_files("shop.unknown", [file], settings=shelf.settings)


@spark_test
def test_the_command_says_what_was_loaded(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.create([doc(1, "a")])
    monkeypatch.setenv("ISCP_HOME", str(shelf.settings.home))
    file = shelf.write("csv", [doc(1, "b"), doc(2, "c")])
    command = ["load", NAME, file, "--on-duplicate", "skip", "--load-id", "one"]
    first = CliRunner().invoke(table_command, [*command, "--json"], catch_exceptions=False)
    assert json.loads(first.stdout) == {
        "table": "sys/shop/docs",
        "load_id": "one",
        "rows_read": 2,
        "inserted": 1,
        "replaced": 0,
        "skipped": 1,
        "version": 1,
        "already_loaded": False,
    }
    again = CliRunner().invoke(table_command, command, catch_exceptions=False)
    assert again.stdout == "sys/shop/docs: load one is there already, nothing changed\n"

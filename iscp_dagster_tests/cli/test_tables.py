"""Tests of `iscp table`: what is recorded, what is refused, and the change data feed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp_dagster_tests.cli.conftest import Iscp, assert_one_line
from iscp_dagster_tests.shop import Shop, make_delta, version_of

Refused = Callable[..., str]


def test_a_recorded_table_is_listed_with_what_it_is(shop: Shop, iscp: Iscp) -> None:
    path = make_delta(shop.folder / "items")
    done = iscp("table", "add", "shop.items", "--uri", str(path), "--pk", "section, id")
    assert (done.code, done.err) == (0, "")
    assert done.out == "sys/shop.items: recorded\n"
    (row,) = iscp("table", "list", "--json").json
    assert set(row) == {"account", "db", "table", "uri", "pk", "delta_id", "added_at"}
    assert (row["account"], row["db"], row["table"]) == ("sys", "shop", "items")
    assert row["uri"] == str(path)
    assert row["pk"] == ["section", "id"]
    assert row["delta_id"] == str(DeltaTable(path).metadata().id)
    shown = iscp("table", "list").out
    assert str(path) in shown
    assert "section, id" in shown


def test_without_tables_the_list_says_how_to_add_one(iscp: Iscp) -> None:
    assert iscp("table", "list", "--json").json == []
    assert "iscp table add" in iscp("table", "list").out


def test_every_spelling_of_a_uri_is_one_table(shop: Shop, iscp: Iscp) -> None:
    path = make_delta(shop.folder / "my tables" / "items")
    (shop.folder / "link").symlink_to(path)
    spellings = [
        "my tables/items",
        "my tables/items/",
        "./my tables/../my tables/items//",
        str(path),
        f"file://{shop.folder}/my%20tables/items",
        "link",
    ]
    for number, spelling in enumerate(spellings):
        done = iscp("table", "add", "shop.items", "--uri", spelling, "--pk", "id")
        assert done.code == 0, done
        assert done.out.endswith("recorded already\n" if number else "recorded\n")
    assert [row["uri"] for row in iscp("table", "list", "--json").json] == [str(path)]


def test_a_uri_in_the_home_folder_is_written_out(
    shop: Shop, iscp: Iscp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(shop.folder))
    path = make_delta(shop.folder / "items")
    assert iscp("table", "add", "shop.items", "--uri", "~/items", "--pk", "id").code == 0
    assert iscp("table", "list", "--json").json[0]["uri"] == str(path)


@pytest.mark.parametrize(
    ("uri", "pk", "named"),
    [
        ("nowhere", "id", "nowhere"),
        ("folder", "id", "folder"),
        ("file", "id", "file"),
        ("ftp://host/items", "id", "uri"),
        ("items", "nosuch", "pk"),
        ("items", "id,nosuch", "nosuch"),
        ("items", "ID", "pk"),
        ("items", "", "pk"),
        ("items", "id,", "pk"),
        ("items", "id,id", "pk"),
        ("items", "id; drop table x", "pk"),
        ("off", "id", "--enable-cdf"),
        ("off", "id", "delta.enableChangeDataFeed=true"),
    ],
)
def test_a_table_that_can_not_be_a_source_is_refused(
    shop: Shop, refused: Refused, uri: str, pk: str, named: str
) -> None:
    make_delta(shop.folder / "items")
    make_delta(shop.folder / "off", feed=False)
    (shop.folder / "folder").mkdir()
    (shop.folder / "file").write_text("not a table")
    shop.add_table("shop.other")
    assert named in refused("table", "add", "shop.items", "--uri", uri, "--pk", pk)
    assert version_of(shop.folder / "off") == 0


BAD_NAMES = [
    "items",
    "shop.",
    ".items",
    "..",
    "...",
    "a.b.c",
    "shop/x.items",
    "shop.../etc/passwd",
    "shop.it'ems",
    'shop."items"',
    "shop.`items`",
    "shop.it ems",
    "shop.it\nems",
    "shop.it\x1bems",
    "shop.it\x00ems",
    "shop.itéms",
    "shop.it;ems",
    "shop." + "x" * 129,
]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("command", ["add", "drop"])
def test_a_name_that_is_none_is_refused(
    shop: Shop, refused: Refused, command: str, name: str
) -> None:
    path = shop.add_table("shop.other")
    rest = ["--uri", str(path), "--pk", "id"] if command == "add" else []
    line = refused("table", command, name, *rest)
    assert "table:" in line or "db:" in line


@pytest.mark.parametrize("account", ["", "a/b", "..", ".", "it's", 'a"b', "a\nb", "a b", "é"])
def test_an_account_that_is_no_name_is_refused(shop: Shop, refused: Refused, account: str) -> None:
    path = shop.add_table("shop.other")
    arguments = ["shop.items", "--uri", str(path), "--pk", "id", "--account", account]
    assert "account:" in refused("table", "add", *arguments)


def test_the_change_feed_is_turned_on_and_really_records_changes(shop: Shop, iscp: Iscp) -> None:
    path = make_delta(shop.folder / "off", feed=False)
    arguments = ["table", "add", "shop.items", "--uri", str(path), "--pk", "id", "--enable-cdf"]
    assert iscp(*arguments).out == "sys/shop.items: recorded\n"
    table = DeltaTable(path)
    on_at = table.version()
    assert on_at == 1
    table.update(predicate="id = 2", new_values={"price": 25.0})
    changes = table.load_cdf(starting_version=on_at + 1).read_all()
    found = sorted(
        zip(
            changes["_change_type"].to_pylist(),
            changes["id"].to_pylist(),
            changes["price"].to_pylist(),
            strict=True,
        )
    )
    assert found == [("update_postimage", 2, 25.0), ("update_preimage", 2, 20.0)]
    assert iscp(*arguments).out == "sys/shop.items: recorded already\n"
    assert table.version() == on_at + 1
    assert version_of(path) == on_at + 1


def test_a_feed_that_is_on_is_left_alone(shop: Shop, iscp: Iscp) -> None:
    path = make_delta(shop.folder / "items")
    iscp("table", "add", "shop.items", "--uri", str(path), "--pk", "id", "--enable-cdf")
    assert version_of(path) == 0


def test_a_name_that_is_taken_leaves_the_other_table_as_it_was(
    shop: Shop, refused: Refused
) -> None:
    taken = shop.add_table()
    off = make_delta(shop.folder / "off", feed=False)
    line = refused("table", "add", "shop.items", "--uri", str(off), "--pk", "id", "--enable-cdf")
    assert str(taken) in line
    assert "iscp table drop" in line
    assert version_of(off) == 0


def test_adding_again_with_another_key_is_refused(shop: Shop, refused: Refused) -> None:
    path = shop.add_table()
    line = refused("table", "add", "shop.items", "--uri", str(path), "--pk", "id,section")
    assert "sys/shop/items" in line


def test_a_table_with_jobs_is_not_dropped(shop: Shop, iscp: Iscp, refused: Refused) -> None:
    path = shop.add_table()
    shop.register("copy", {"type": "mirror"})
    assert "iscp unregister" in refused("table", "drop", "shop.items")
    assert iscp("unregister", "shop.items", "copy").code == 0
    assert iscp("table", "drop", "shop.items").out == "sys/shop.items: dropped\n"
    assert iscp("table", "list", "--json").json == []
    assert version_of(path) == 0


def test_dropping_what_is_not_recorded_says_so(shop: Shop, iscp: Iscp) -> None:
    shop.add_table("shop.other")
    done = iscp("table", "drop", "shop.items")
    assert (done.code, done.out) == (0, "sys/shop.items: was not recorded\n")


def test_a_dropped_table_can_come_back_with_another_key(shop: Shop, iscp: Iscp) -> None:
    path = shop.add_table()
    iscp("table", "drop", "shop.items")
    iscp("table", "add", "shop.items", "--uri", str(path), "--pk", "section,id")
    assert [row["pk"] for row in iscp("table", "list", "--json").json] == [["section", "id"]]


def test_accounts_have_tables_of_the_same_name_apart(shop: Shop, iscp: Iscp) -> None:
    ours = shop.add_table("shop.items", account="ours")
    theirs = shop.add_table("shop.items", account="theirs")
    assert ours != theirs
    for account, path in (("ours", ours), ("theirs", theirs)):
        (row,) = iscp("table", "list", "--account", account, "--json").json
        assert (row["account"], row["uri"]) == (account, str(path))
    assert iscp("table", "list", "--account", "nobody", "--json").json == []
    assert len(iscp("table", "list", "--json").json) == 2
    iscp("table", "drop", "shop.items", "--account", "ours")
    assert [row["account"] for row in iscp("table", "list", "--json").json] == ["theirs"]


def test_a_table_is_not_reached_from_another_account(shop: Shop, refused: Refused) -> None:
    shop.add_table("shop.items", account="ours")
    line = refused("register", "shop.items", "copy", "--type", "mirror", "--account", "theirs")
    assert "theirs/shop/items" in line
    assert "iscp table list" in line


@pytest.mark.parametrize("home", ["file/home", "/proc/iscp-home"])
def test_a_home_that_can_not_be_made_is_one_line(
    shop: Shop, iscp: Iscp, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    (shop.folder / "file").write_text("in the way")
    monkeypatch.setenv("ISCP_HOME", home)
    for arguments in (["jobs"], ["table", "list"], ["status", "shop.items", "copy"], ["sync"]):
        done = iscp(*arguments)
        assert done.code in (1, 2)
        assert_one_line(done)
        assert "ISCP_HOME" in done.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_home_is_one_line(shop: Shop, iscp: Iscp) -> None:
    shop.home.mkdir()
    shop.home.chmod(0o500)
    done = iscp("table", "list")
    assert done.code == 1
    assert_one_line(done)


def test_a_log_that_is_no_database_is_one_line_and_left_alone(shop: Shop, iscp: Iscp) -> None:
    shop.home.mkdir()
    log = shop.home / "iscp.db"
    log.write_bytes(b"dear diary" * 1000)
    path = make_delta(shop.folder / "items")
    add = ["table", "add", "shop.items", "--uri", str(path), "--pk", "id"]
    for arguments in (add, ["jobs", "--json"], ["iterations"], ["pause", "shop.items", "copy"]):
        done = iscp(*arguments)
        assert done.code == 1
        assert_one_line(done)
        assert str(log) in done.err
    assert log.read_bytes() == b"dear diary" * 1000


def test_a_log_server_that_does_not_answer_is_one_line_without_the_password(
    shop: Shop, iscp: Iscp, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg2")
    monkeypatch.setenv("ISCP_LOG_URL", "postgresql://app:s3cret@127.0.0.1:1/iscp")
    path = make_delta(shop.folder / "off", feed=False)
    add = ["table", "add", "shop.items", "--uri", str(path), "--pk", "id", "--enable-cdf"]
    for arguments in (add, ["jobs"], ["register", "shop.items", "copy", "--type", "mirror"]):
        done = iscp(*arguments)
        assert done.code == 1
        assert_one_line(done)
        assert "ISCP_LOG_URL" in done.err
        assert "s3cret" not in done.err
    assert version_of(path) == 0


def test_a_log_from_a_newer_version_is_one_line_and_untouched(shop: Shop, iscp: Iscp) -> None:
    shop.add_table()
    shop.execute("update iscp_schema set version = 999")
    before = shop.contents()
    for arguments in (["jobs"], ["register", "shop.items", "copy", "--type", "mirror"]):
        done = iscp(*arguments)
        assert done.code == 1
        assert_one_line(done)
        assert "999" in done.err
        assert "upgrade" in done.err
    assert shop.contents() == before


@pytest.mark.parametrize("name", ["ISCP_RUNNER_SHARDS", "ISCP_LOG_URL"])
def test_a_wrong_setting_is_named(
    shop: Shop, refused: Refused, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "many")
    assert name in refused("jobs")


def test_nothing_is_left_behind_by_a_list_of_nothing(shop: Shop, iscp: Iscp) -> None:
    iscp("jobs", "--json")
    assert {path.name.partition("-")[0] for path in Path(shop.home).iterdir()} <= {"iscp.db"}

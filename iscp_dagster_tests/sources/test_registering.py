"""Tests of making a Delta table fit to be a source."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp_dagster.errors import TableUnreadable, UsageError
from iscp_dagster.sources.facts import read_facts
from iscp_dagster.sources.registering import enable_change_feed, normalize_uri
from iscp_dagster_tests.shop import make_delta


@pytest.mark.parametrize(
    ("uri", "one_spelling"),
    [
        ("s3://bucket/docs/", "s3://bucket/docs"),
        ("s3://bucket/docs//", "s3://bucket/docs"),
        ("s3://bucket/docs", "s3://bucket/docs"),
        ("gs://bucket/a/b/", "gs://bucket/a/b"),
        ("abfss://box@host/a/", "abfss://box@host/a"),
        ("/data/docs/", "/data/docs"),
        ("/data/./x/../docs", "/data/docs"),
        ("file:///data/docs/", "/data/docs"),
        ("file:///data/my%20docs", "/data/my docs"),
        ("FILE:///data/docs", "/data/docs"),
    ],
)
def test_a_uri_has_one_spelling(uri: str, one_spelling: str) -> None:
    assert normalize_uri(uri) == one_spelling
    assert normalize_uri(one_spelling) == one_spelling


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalize_uri("docs/") == str(tmp_path / "docs")
    assert normalize_uri("./a/../docs") == str(tmp_path / "docs")
    (tmp_path / "link").symlink_to(tmp_path / "docs")
    assert normalize_uri("link") == str(tmp_path / "docs")


def test_a_store_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match="uri: ftp://"):
        normalize_uri("ftp://host/docs")


def test_the_feed_is_on_afterwards_and_the_table_is_the_same_one(tmp_path: Path) -> None:
    path = make_delta(tmp_path / "docs", feed=False)
    before = read_facts(str(path))
    assert before.change_feed is False
    enable_change_feed(str(path))
    after = read_facts(str(path))
    assert after.change_feed is True
    assert after.delta_id == before.delta_id
    assert after.columns == before.columns
    assert DeltaTable(path).to_pyarrow_table().num_rows == 3


def test_a_table_that_can_not_be_changed_says_how_else(tmp_path: Path) -> None:
    with pytest.raises(TableUnreadable, match=r"delta\.enableChangeDataFeed=true") as caught:
        enable_change_feed(str(tmp_path / "nowhere"))
    assert "\n" not in str(caught.value)

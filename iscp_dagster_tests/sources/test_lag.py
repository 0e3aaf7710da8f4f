"""Tests of lag: the age of the oldest change an index does not hold yet."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from iscp_dagster.rules.model import Job, Table
from iscp_dagster.sources.lag import lag_seconds
from iscp_dagster_tests.rules.builders import job
from iscp_dagster_tests.sources.conftest import S3, Source

LATER = datetime.now(UTC) + timedelta(hours=1)


def lags(source: Source, *jobs: Job, table: Table | None = None) -> list[float | None]:
    found = lag_seconds(jobs, {1: table or source.table()}, LATER)
    return [found[one.job_id] for one in jobs]


def commit_time(source: Source, version: int) -> datetime:
    times = {entry["version"]: entry["timestamp"] for entry in source.delta.history()}
    return datetime.fromtimestamp(times[version] / 1000, UTC)


def test_an_index_at_the_newest_version_has_no_lag(source: Source) -> None:
    source.write_versions(3)
    assert lags(source, job("a", 2)) == [0.0]


def test_lag_counts_from_the_first_change_that_is_missing(source: Source) -> None:
    source.write_versions(4)
    expected = [(LATER - commit_time(source, at + 1)).total_seconds() for at in (0, 1, 2)]
    assert lags(source, job("a", 0), job("b", 1), job("c", 2)) == expected


def test_before_the_first_sync_lag_is_unknown(source: Source) -> None:
    source.write(1)
    assert lags(source, job("a", -1)) == [None]


def test_commits_without_data_change_are_no_lag(source: Source) -> None:
    source.write(1)
    source.write(2)
    source.delta.optimize.compact()
    source.delta.alter.set_table_properties({"delta.logRetentionDuration": "interval 30 days"})
    assert source.delta.version() == 3
    assert lags(source, job("a", 1)) == [0.0]
    for i in range(6):
        source.delta.alter.set_table_properties({"delta.appendOnly": ["true", "false"][i % 2]})
    source.write(3)
    expected = (LATER - commit_time(source, source.delta.version())).total_seconds()
    assert lags(source, job("a", 1)) == [expected]


def test_where_the_next_commits_are_gone_lag_counts_from_what_is_left(source: Source) -> None:
    source.write_versions(6)
    source.delta.create_checkpoint()
    left = (LATER - commit_time(source, 4)).total_seconds()
    for version in range(4):
        source.commit_file(version).unlink()
    assert lags(source, job("a", 1), job("b", 5)) == [left, 0.0]


def test_a_table_that_is_gone_or_damaged_has_no_known_lag(source: Source) -> None:
    source.write_versions(2)
    table = source.table()
    source.commit_file(1).write_text("no json")
    assert lags(source, job("a", 0), table=table) == [None]
    shutil.rmtree(source.path)
    assert lags(source, job("a", 0), table=table) == [None]


def test_a_table_that_the_log_no_longer_has_has_no_known_lag(source: Source) -> None:
    source.write(1)
    assert lag_seconds([job("a", 0, job_id=1)], {}, LATER) == {1: None}


def test_one_store_that_can_not_be_had_leaves_the_others_their_lag(source: Source) -> None:
    source.write_versions(2)
    elsewhere = source.table(uri="ftp://host/docs", delta_id="x")
    a, b = job("a", 0, job_id=1), job("b", 0, job_id=2)
    found = lag_seconds([a, replace(b, table_id=2)], {1: source.table(), 2: elsewhere}, LATER)
    assert found[1] is not None
    assert found[1] > 0
    assert found[2] is None


def test_a_clock_behind_the_commit_s_gives_no_negative_lag(source: Source) -> None:
    source.write_versions(2)
    early = datetime(2020, 1, 1, tzinfo=UTC)
    assert lag_seconds([job("a", 0)], {1: source.table()}, early) == {job("a", 0).job_id: 0.0}


def test_lag_on_an_object_store_asks_only_for_the_commits_it_needs(s3: S3, tmp_path: Path) -> None:
    source = Source(s3.root / "bucket" / "docs")
    source.write_versions(40)
    table = source.table(uri="s3://bucket/docs")
    s3.take_requests()
    expected = (LATER - commit_time(source, 6)).total_seconds()
    assert lags(source, job("a", 5), job("b", 39), table=table) == [expected, 0.0]
    assert len(s3.take_requests()) <= 5
    s3.status = 403
    assert lags(source, job("a", 5), table=table) == [None]

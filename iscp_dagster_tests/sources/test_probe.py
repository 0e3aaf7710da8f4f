"""The change probe against Delta tables on disk."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from iscp_dagster.rules.model import (
    History,
    Probed,
    ProbeFailed,
    Table,
    TableMissing,
    TableReplaced,
)
from iscp_dagster.sources.probe import Probe, ProbeRequest
from iscp_dagster_tests.sources.conftest import Source


def ask(probe: Probe, table: Table, since: int) -> Probed:
    return probe.probe([ProbeRequest(table, since)])[table.key]


def history(probe: Probe, table: Table, since: int) -> History:
    found = ask(probe, table, since)
    assert isinstance(found, History), found
    return found


def versions(found: History) -> list[int]:
    return [commit.version for commit in found]


def changes(found: History) -> dict[int, bool]:
    return {commit.version: commit.data_change for commit in found}


def drop_log_before(source: Source, version: int) -> None:
    """What log cleanup does: a checkpoint stays, the commits before it go."""
    source.delta.create_checkpoint()
    for old in range(version):
        source.commit_file(old).unlink(missing_ok=True)


# --- what changed


def test_commits_after_since_are_found_with_their_times(source: Source):
    source.write_versions(4)
    found = history(Probe(), source.table(), since=1)
    assert (found.head.version, versions(found), found.first_version) == (3, [2, 3], 0)
    written = source.delta.history(1)[0]["timestamp"]
    assert round(found.head.time.timestamp() * 1000) == written
    assert all(commit.bytes > 0 for commit in found)


def test_rewrites_and_properties_are_no_changes_but_row_changes_are(source: Source):
    source.write(1, 2)
    source.write(3)
    source.delta.optimize.compact()
    source.delta.alter.set_table_properties({"delta.appendOnly": "false"})
    source.delta.delete("id = 2")
    source.delta.merge(
        pa.table({"id": [3, 9], "body": ["new", "newer"]}),
        "t.id = s.id",
        source_alias="s",
        target_alias="t",
    ).when_matched_update_all().when_not_matched_insert_all().execute()
    source.write(5, mode="overwrite")
    found = history(Probe(), source.table(), since=0)
    assert changes(found) == {1: True, 2: False, 3: False, 4: True, 5: True, 6: True}


def test_a_new_job_gets_the_newest_version_without_reading_commits(source: Source):
    source.write_versions(5)
    source.delta.create_checkpoint()
    table = source.table()
    source.commit_file(2).write_text("corrupt, and nobody's business")
    found = history(Probe(), table, since=-1)
    assert (found.head.version, found.commits) == (4, ())


def test_an_unchanged_table_gives_the_same_object(source: Source):
    source.write_versions(3)
    probe, table = Probe(check_every=2), source.table()
    first = history(probe, table, since=1)
    assert all(history(probe, table, since=1) is first for _ in range(5))


def test_growth_is_appended_and_what_is_behind_since_is_dropped(source: Source):
    source.write_versions(3)
    probe, table = Probe(), source.table()
    assert versions(history(probe, table, since=0)) == [1, 2]
    source.write_versions(2)
    assert versions(history(probe, table, since=0)) == [1, 2, 3, 4]
    assert versions(history(probe, table, since=3)) == [4]
    idle = history(probe, table, since=4)
    assert (idle.head.version, versions(idle)) == (4, [])
    assert history(probe, table, since=4) is idle


def test_a_job_that_comes_back_from_behind_gets_the_commits_it_missed(source: Source):
    source.write_versions(6)
    probe, table = Probe(), source.table()
    assert versions(history(probe, table, since=5)) == []
    assert versions(history(probe, table, since=2)) == [3, 4, 5]
    assert versions(history(probe, table, since=-1)) == []
    assert versions(history(probe, table, since=4)) == [5]


def test_a_long_backlog_is_read_in_pieces_and_head_is_the_last_one_read(source: Source):
    source.write_versions(8)
    probe, table = Probe(max_commits=3), source.table()
    heads = [history(probe, table, since=0).head.version for _ in range(4)]
    assert heads == [3, 6, 7, 7]
    assert versions(history(probe, table, since=0)) == [1, 2, 3, 4, 5, 6, 7]


def test_a_backlog_that_nobody_wants_any_more_is_skipped(source: Source):
    source.write_versions(9)
    probe, table = Probe(max_commits=2), source.table()
    assert history(probe, table, since=0).head.version == 2
    assert history(probe, table, since=7).head.version == 8
    assert history(probe, table, since=0).head.version == 2
    assert history(probe, table, since=-1).head.version == 8


def test_the_request_for_new_and_old_jobs_together_serves_the_old_ones(source: Source):
    source.write(1)
    table = source.table()
    assert ProbeRequest.of(table, [-1, 7, 5]) == ProbeRequest(table, 5)
    assert ProbeRequest.of(table, [-1]) == ProbeRequest(table, -1)


# --- lost history


def test_commits_gone_before_the_first_look_are_lost_history(source: Source):
    source.write_versions(8)
    drop_log_before(source, 5)
    found = history(Probe(), source.table(), since=2)
    assert (found.first_version, versions(found), found.head.version) == (5, [5, 6, 7], 7)


def test_cleanup_that_takes_the_next_commit_is_noticed(source: Source):
    source.write_versions(3)
    probe, table = Probe(), source.table()
    assert history(probe, table, since=2).head.version == 2
    source.write_versions(5)
    drop_log_before(source, 6)
    found = history(probe, table, since=2)
    assert (found.first_version, versions(found), found.head.version) == (6, [6, 7], 7)


def test_cleanup_under_a_waiting_job_is_noticed_at_the_closer_check(source: Source):
    source.write_versions(8)
    probe, table = Probe(check_every=1), source.table()
    assert history(probe, table, since=2).first_version == 0
    drop_log_before(source, 5)
    found = history(probe, table, since=2)
    assert (found.first_version, versions(found)) == (5, [5, 6, 7])


def test_real_cleanup_by_delta_rs_is_lost_history(source: Source):
    source.write_versions(6)
    source.delta.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    source.delta.create_checkpoint()
    source.delta.cleanup_metadata()
    assert not source.commit_file(0).exists()
    found = history(Probe(), source.table(), since=1)
    assert found.first_version > 2
    assert found.head.version == 6


# --- missing, replaced


@pytest.mark.parametrize("gone", ["table", "log", "commits"])
def test_a_table_that_goes_is_missing(source: Source, gone: str):
    source.write_versions(2)
    probe, table = Probe(), source.table()
    assert history(probe, table, since=0).head.version == 1
    shutil.rmtree(source.path if gone == "table" else source.log)
    if gone == "commits":
        source.log.mkdir()
    found = ask(probe, table, since=0)
    assert isinstance(found, TableMissing)
    assert str(source.path) in found.reason
    assert isinstance(ask(Probe(), table, since=0), TableMissing)


def test_a_table_that_comes_back_is_found_again(source: Source):
    source.write_versions(2)
    probe, table = Probe(), source.table()
    away = source.path.with_name("away")
    source.path.rename(away)
    assert isinstance(ask(probe, table, since=0), TableMissing)
    away.rename(source.path)
    assert history(probe, table, since=0).head.version == 1


@pytest.mark.parametrize("new_versions", [1, 3, 6])
@pytest.mark.parametrize("since", [-1, 2])
def test_a_table_made_anew_at_the_same_place_is_replaced(
    source: Source, new_versions: int, since: int
):
    source.write_versions(3)
    probe, table = Probe(), source.table()
    assert history(probe, table, since).head.version == 2
    shutil.rmtree(source.path)
    source.write_versions(new_versions)
    expected = TableReplaced(str(source.delta.metadata().id))
    assert expected.delta_id != table.delta_id
    assert ask(probe, table, since) == expected
    assert ask(probe, table, since) == expected
    assert ask(Probe(), table, since) == expected


@pytest.mark.parametrize("since", [-1, 1])
def test_a_commit_that_gives_the_table_another_id_replaces_it(source: Source, since: int):
    source.write_versions(2)
    probe, table = Probe(), source.table()
    assert history(probe, table, since).head.version == 1
    metadata = next(
        action
        for action in map(json.loads, source.commit_file(0).read_text().splitlines())
        if "metaData" in action
    )
    metadata["metaData"]["id"] = "another"
    source.commit_file(2).write_text(json.dumps(metadata) + "\n")
    source.write(7)
    assert ask(probe, table, since) == TableReplaced("another")
    assert ask(Probe(), table, since) == TableReplaced("another")


def test_a_table_whose_id_changed_before_it_was_added_is_not_replaced(source: Source):
    source.write_versions(2)
    first = source.commit_file(0)
    first.write_text(first.read_text().replace(str(source.delta.metadata().id), "the-one-before"))
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    metadata = next(action for action in lines if "metaData" in action)
    metadata["metaData"]["id"] = "now"
    source.commit_file(2).write_text(json.dumps(metadata) + "\n")
    source.write(7)
    assert str(source.delta.metadata().id) == "now"
    assert versions(history(Probe(), source.table(), since=2)) == [3]


def test_a_table_put_back_to_an_older_state_is_read_again(source: Source):
    source.write_versions(2)
    table = source.table()
    backup = source.path.with_name("backup")
    shutil.copytree(source.path, backup)
    source.write_versions(3)
    probe = Probe()
    assert history(probe, table, since=1).head.version == 4
    shutil.rmtree(source.path)
    shutil.copytree(backup, source.path)
    assert history(probe, table, since=1).head.version == 1


# --- faults


@pytest.mark.parametrize("content", ["{nonsense", "", '{"version": 10000000}', '{"version": "x"}'])
def test_a_corrupt_last_checkpoint_does_not_matter(source: Source, content: str):
    source.write_versions(4)
    source.delta.create_checkpoint()
    table = source.table()
    (source.log / "_last_checkpoint").write_text(content)
    assert versions(history(Probe(), table, since=1)) == [2, 3]


def test_an_unreadable_commit_fails_its_table_alone_until_it_is_mended(
    new_source: Callable[[str], Source],
):
    good, bad = new_source("good"), new_source("bad")
    for source in (good, bad):
        source.write_versions(3)
    probe = Probe()
    requests = [ProbeRequest(bad.table(), 0), ProbeRequest(good.table(), 0)]
    text = bad.commit_file(2).read_text()
    bad.commit_file(2).write_text(text[: len(text) // 2])
    found = probe.probe(requests)
    failed = found[requests[0].table.key]
    assert isinstance(failed, ProbeFailed)
    assert failed.reason.startswith("commit 2, line ")
    assert "\n" not in failed.reason
    assert isinstance(found[requests[1].table.key], History)
    bad.commit_file(2).write_text(text)
    assert versions(history(probe, requests[0].table, since=0)) == [1, 2]


def test_a_broken_first_commit_behind_a_checkpoint_does_not_matter(source: Source):
    source.write_versions(4)
    source.delta.create_checkpoint()
    table = source.table()
    source.commit_file(0).write_text("{broken")
    assert versions(history(Probe(), table, since=2)) == [3]


def test_a_fault_while_following_keeps_what_was_known(source: Source):
    source.write_versions(3)
    probe, table = Probe(), source.table()
    known = history(probe, table, since=0)
    source.commit_file(3).mkdir()
    assert isinstance(ask(probe, table, since=0), ProbeFailed)
    source.commit_file(3).rmdir()
    assert history(probe, table, since=0) is known


def test_a_folder_that_cannot_be_entered_is_a_fault_and_not_a_missing_table(source: Source):
    source.write_versions(2)
    probe, table = Probe(), source.table()
    known = history(probe, table, since=0)
    away = source.log.rename(source.path / "away")
    source.log.symlink_to(source.log)
    assert isinstance(ask(probe, table, since=0), ProbeFailed)
    assert isinstance(ask(Probe(), table, since=0), ProbeFailed)
    source.log.unlink()
    away.rename(source.log)
    assert history(probe, table, since=0) is known


def test_checkpoints_without_commits_are_a_fault_and_not_a_missing_table(source: Source):
    source.write_versions(3)
    table = source.table()
    drop_log_before(source, 3)
    found = ask(Probe(), table, since=1)
    assert isinstance(found, ProbeFailed)
    assert "no commits" in found.reason


def test_an_unknown_kind_of_uri_fails_its_table_alone(source: Source):
    source.write(1)
    strange = source.table(uri="ftp://host/table")
    found = ask(Probe(), strange, since=0)
    assert isinstance(found, ProbeFailed)
    assert "ftp" in found.reason


# --- many tables


@pytest.fixture
def many(new_source: Callable[[str], Source]) -> list[Source]:
    """Forty copies of one table, under forty names."""
    first = new_source("t0")
    first.write_versions(3)
    copies = [first]
    for i in range(1, 40):
        copy = new_source(f"t{i}")
        shutil.copytree(first.path, copy.path)
        copies.append(copy)
    return copies


def test_tables_out_of_time_are_absent_and_come_first_next_time(many: list[Source]):
    probe = Probe()
    requests = [ProbeRequest(source.table(), 0) for source in many]
    keys = [request.table.key for request in requests]
    assert probe.probe(requests, deadline=time.monotonic() - 1) == {}
    probe.probe(requests[:30])
    assert list(probe.probe(requests)) == keys[30:] + keys[:30]
    assert list(probe.probe(requests)) == keys


def test_only_the_tables_that_changed_get_a_new_history(many: list[Source]):
    probe = Probe()
    requests = [ProbeRequest(source.table(), 2) for source in many]
    before = probe.probe(requests)
    for source in many[::10]:
        source.write(8)
    after = probe.probe(requests)
    changed = [key.table for key in after if after[key] is not before[key]]
    assert changed == ["t0", "t10", "t20", "t30"]


def test_probes_from_several_threads_agree(many: list[Source]):
    probe = Probe()
    requests = [ProbeRequest(source.table(), 0) for source in many]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: probe.probe(requests), range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert all(
        versions(found) == [1, 2] for found in answers[0].values() if isinstance(found, History)
    )


def test_tables_that_are_not_retained_are_looked_at_anew(source: Source):
    source.write_versions(2)
    probe, table = Probe(), source.table()
    known = history(probe, table, since=0)
    probe.retain([table.key])
    assert history(probe, table, since=0) is known
    probe.retain([])
    assert history(probe, table, since=0) is not known


def test_a_table_that_moved_is_looked_at_anew(new_source: Callable[[str], Source]):
    here, there = new_source("here"), new_source("there")
    here.write_versions(2)
    shutil.copytree(here.path, there.path)
    there.write(5)
    probe, table = Probe(), here.table()
    assert history(probe, table, since=0).head.version == 1
    assert history(probe, here.table(uri=f"file://{there.path}"), since=0).head.version == 2


def test_following_a_table_on_disk_imports_nothing_heavy(source: Source):
    source.write_versions(2)
    script = f"""
import sys
from datetime import UTC, datetime
from iscp_dagster.rules.model import History, Table, TableKey
from iscp_dagster.sources.probe import Probe, ProbeRequest
key = TableKey("sys", "db", "docs")
table = Table(key, 1, {str(source.path)!r}, ("id",), {source.table().delta_id!r}, datetime.now(UTC))
assert isinstance(Probe().probe([ProbeRequest(table, 0)])[key], History)
print(*{{"dagster", "deltalake", "lance", "obstore", "pyarrow", "pyspark"}} & sys.modules.keys())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""

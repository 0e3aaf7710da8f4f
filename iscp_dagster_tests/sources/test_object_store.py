"""Probe and facts against tables behind an S3 endpoint."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable

import pytest

from iscp_dagster.errors import TableUnreadable, UnknownDeltaTable
from iscp_dagster.rules.model import (
    History,
    Probed,
    ProbeFailed,
    Table,
    TableMissing,
    TableReplaced,
)
from iscp_dagster.sources.facts import estimate_rows, read_facts
from iscp_dagster.sources.probe import Probe, ProbeRequest
from iscp_dagster.sources.storage import delta_table_resource
from iscp_dagster_tests.sources.conftest import S3, Source

URI = "s3://lake/some folder/docs"


@pytest.fixture
def remote(s3: S3) -> Source:
    """A table in the bucket `lake`."""
    source = Source(s3.root / "lake" / "some folder" / "docs")
    source.path.mkdir(parents=True)
    source.write_versions(4)
    return source


def ask(probe: Probe, table: Table, since: int) -> Probed:
    return probe.probe([ProbeRequest(table, since)])[table.key]


def name(version: int) -> str:
    return f"{version:020d}.json"


def test_the_same_commits_are_read_as_from_disk(remote: Source):
    here, there = ask(Probe(), remote.table(), 0), ask(Probe(), remote.table(URI), 0)
    assert isinstance(there, History)
    assert isinstance(here, History)
    assert (there.head, there.commits) == (here.head, here.commits)


def test_an_unchanged_table_costs_one_request(remote: Source, s3: S3):
    probe, table = Probe(check_every=1000), remote.table(URI)
    known = ask(probe, table, 3)
    s3.take_requests()
    assert ask(probe, table, 3) is known
    assert s3.take_requests() == [f"HEAD {name(4)}"]


def test_the_first_look_lists_from_where_it_is_asked(remote: Source, s3: S3):
    table = remote.table(URI)
    s3.take_requests()
    ask(Probe(), table, 2)
    listings = [request for request in s3.take_requests() if request.startswith("LIST")]
    assert listings == [f"LIST {2:020d}"]


def test_a_new_job_s_look_lists_from_the_last_checkpoint(remote: Source, s3: S3):
    remote.delta.create_checkpoint()
    table = remote.table(URI)
    s3.take_requests()
    found = ask(Probe(), table, -1)
    assert isinstance(found, History)
    assert (found.head.version, found.commits) == (3, ())
    listings = [request for request in s3.take_requests() if request.startswith("LIST")]
    assert listings[0] == f"LIST {3:020d}"


@pytest.mark.parametrize("since", [-1, 1])
@pytest.mark.parametrize(
    "hint", ["{nonsense", "", "[]", '{"version": 10000000}', '{"version": "x"}', '{"version": 2}']
)
def test_the_newest_version_is_found_whatever_last_checkpoint_says(
    remote: Source, hint: str, since: int
):
    table = remote.table(URI)
    (remote.log / "_last_checkpoint").write_text(hint)
    found = ask(Probe(), table, since)
    assert isinstance(found, History)
    assert found.head.version == 3


def test_a_store_that_hangs_keeps_neither_the_deadline_nor_the_other_tables(
    remote: Source, s3: S3, new_source: Callable[[str], Source]
):
    local = new_source("local")
    local.write(1)
    probe = Probe()
    requests = [ProbeRequest(remote.table(URI), 3), ProbeRequest(local.table(), 0)]
    probe.probe(requests)
    s3.answering.clear()
    start = time.monotonic()
    found = probe.probe(requests, deadline=start + 0.5)
    assert time.monotonic() - start < 5
    assert list(found) == [requests[1].table.key]
    s3.answering.set()
    assert len(probe.probe(requests, deadline=time.monotonic() + 60)) == 2


def test_growth_and_a_closer_check_follow_the_log(remote: Source):
    probe, table = Probe(check_every=2, max_commits=50), remote.table(URI)
    ask(probe, table, 3)
    remote.write_versions(40)
    found = ask(probe, table, 3)
    assert isinstance(found, History)
    assert [commit.version for commit in found] == list(range(4, 44))
    assert all(ask(probe, table, 3) is found for _ in range(5))


def test_cleanup_that_takes_the_next_commit_is_noticed_at_the_closer_check(remote: Source):
    probe, table = Probe(check_every=3), remote.table(URI)
    ask(probe, table, 3)
    remote.write_versions(5)
    remote.delta.create_checkpoint()
    for version in range(7):
        remote.commit_file(version).unlink()
    answers = [ask(probe, table, 3) for _ in range(3)]
    found = answers[-1]
    assert isinstance(found, History)
    assert (found.first_version, found.head.version) == (7, 8)


def test_a_table_made_anew_is_replaced(remote: Source):
    probe, table = Probe(check_every=2), remote.table(URI)
    ask(probe, table, 3)
    shutil.rmtree(remote.path)
    remote.write_versions(6)
    assert ask(probe, table, 3) == TableReplaced(str(remote.delta.metadata().id))


def test_a_table_that_goes_is_missing_at_the_closer_check(remote: Source):
    probe, table = Probe(check_every=2), remote.table(URI)
    ask(probe, table, 3)
    shutil.rmtree(remote.path)
    answers = [ask(probe, table, 3) for _ in range(2)]
    assert isinstance(answers[-1], TableMissing)
    assert isinstance(ask(Probe(), table, 3), TableMissing)


def test_a_refused_request_fails_the_table_for_this_time_only(remote: Source, s3: S3):
    probe, table = Probe(), remote.table(URI)
    known = ask(probe, table, 3)
    s3.status = 403
    failed = ask(probe, table, 3)
    assert isinstance(failed, ProbeFailed)
    assert "\n" not in failed.reason
    assert isinstance(ask(Probe(), table, 3), ProbeFailed)
    with pytest.raises(TableUnreadable):
        read_facts(URI)
    s3.status = 0
    assert ask(probe, table, 3) is known


def test_a_store_that_is_away_is_asked_three_times_and_no_more(remote: Source, s3: S3):
    table = remote.table(URI)
    s3.status = 503
    s3.take_requests()
    assert isinstance(ask(Probe(), table, 3), ProbeFailed)
    assert len(s3.take_requests()) == 3
    with pytest.raises(TableUnreadable):
        read_facts(URI)
    assert max(Counter(s3.take_requests()).values()) == 3


def test_facts_are_read_through_the_endpoint(remote: Source):
    facts, here = read_facts(URI), read_facts(str(remote.path))
    assert (facts.delta_id, facts.columns) == (here.delta_id, here.columns)
    assert facts.ts.version == 3
    assert estimate_rows(URI) == 4
    with pytest.raises(UnknownDeltaTable):
        read_facts("s3://lake/nothing/here")


def test_dagster_s_own_resource_reads_the_table(remote: Source):
    assert delta_table_resource(URI).load().version() == 3
    assert delta_table_resource(str(remote.path)).load().version() == 3

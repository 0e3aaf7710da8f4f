"""A power cut at each point of a shared iteration, then running again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterRunStatus
from deltalake import DeltaTable

from iscp_dagster import api
from iscp_dagster.orchestration import settle
from iscp_dagster.rules import backoff
from iscp_dagster.rules.model import JobState
from iscp_dagster.stores.delta_index import DeltaIndex
from iscp_dagster.stores.lance_index import LanceIndex
from iscp_dagster_tests.iteration.shelf import Shelf
from iscp_dagster_tests.iteration.works import (
    DELTA,
    LANCE,
    NAMES,
    PLUG_INS,
    WAIT_SECONDS,
    Works,
    last_run,
    windows_in,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

POINTS = {
    "after the claim": "kill@after_claim",
    "after the scan": "kill@after_scan",
    "between two commits": "hang@before_apply:look,kill@after_commit:copy",
    "after the commits, before the log": "kill@before_log",
    "after the log, before an event": "kill@before_event:look",
}
STORED = (*DELTA, *LANCE)
"""The jobs whose store tells where it stands."""
ALL = (*NAMES, *LANCE)
NONE_COMMITTED = ("after the claim", "after the scan")
LOGGED = "after the log, before an event"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead run is found, and its jobs are tried again, in a second: no other is alive here."""
    for name in ("SILENT_SECONDS", "ENDING_SECONDS", "UNCLAIMED_SECONDS"):
        monkeypatch.setattr(settle, name, 1.0)
    monkeypatch.setattr(backoff, "FIRST_DELAY", timedelta(milliseconds=100))


@pytest.fixture(scope="module")
def lance(_works: Works) -> Iterator[None]:
    """A full-text and a vector index on the table too, as long as these tests go on."""
    log = _works.house.log
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PLUG_INS)
        for name, spec in LANCE.items():
            assert api.register_job("shop.items", name, spec, log=log)
    yield
    for name in LANCE:
        assert api.unregister_job("shop.items", name, log=log)


@pytest.mark.usefixtures("impatient", "lance")
@pytest.mark.parametrize("where", POINTS)
def test_a_power_cut_loses_and_repeats_nothing(works: Works, where: str):
    before = works.versions()[0]
    head = works.change()
    crash = works.start(POINTS[where])
    assert crash.wait(WAIT_SECONDS) == -signal.SIGKILL
    dead = last_run(works.instance)
    assert dead.status is DagsterRunStatus.STARTED
    assert works.versions(*ALL) == [head if where == LOGGED else before] * len(ALL)
    committed = [name for name in STORED if committed_up_to(works, name) == head]
    if where in NONE_COMMITTED:
        assert committed == []
    elif where == "between two commits":
        assert "copy" in committed
        assert "look" not in committed
    else:
        assert committed == list(STORED)

    report = works.sync(attempts=3)
    assert report.behind == ()
    assert works.versions(*ALL) == [head] * len(ALL)
    assert works.is_right(*ALL)
    assert works.nothing_is_left()
    assert {works.job(name).state for name in ALL} == {JobState.COMPLETED}
    ended = works.instance.get_run_by_id(dead.run_id)
    assert ended is not None
    assert ended.status is DagsterRunStatus.FAILURE
    told = {name: works.materializations(name)[0].metadata for name in STORED}
    if where == LOGGED:
        # The run told of the first one and died; there is nothing left to run for the others.
        assert told["copy"]["iscp/source_version"].value == head
        return
    assert [one["iscp/source_version"].value for one in told.values()] == [head] * len(STORED)
    assert [name for name in STORED if told[name]["iscp/kind"].value == "no-op"] == committed


@pytest.mark.usefixtures("impatient")
def test_a_first_sync_that_fails_after_its_commit_doubles_and_keeps_nothing(
    works: Works, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    shelf = Shelf(works, "first")
    monkeypatch.setenv("ISCP_FAULT", "raise@after_commit:look")
    works.by_hand(works.house.window(-1, 0, "first"), "look", table="first")
    job = shelf.job
    assert (job.attempt, job.watermark.is_zero) == (1, True)
    assert len(shelf.index(spark)) == 3
    monkeypatch.delenv("ISCP_FAULT")
    DeltaTable(shelf.uri).delete("id = 2")
    report = works.sync("first", attempts=3)
    assert report.behind == ()
    assert shelf.index(spark) == [(1, "s1", 1), (3, "s3", 3)]
    assert [window.end.version for window in windows_in(works.uri(job))] == [0, 1]


def committed_up_to(works: Works, name: str) -> int:
    """Where an index's own store says that it stands."""
    job = works.job(name)
    store = LanceIndex if name in LANCE else DeltaIndex
    standing = store(works.uri(job), job.job_id).standing()
    assert standing is not None
    return standing.watermark.version

"""One consumer out of four fails, is refused for good, or hangs; the other three don't notice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterRunStatus

from iscp_dagster import api
from iscp_dagster.iteration import fan_out
from iscp_dagster.rules import backoff
from iscp_dagster.rules.model import JobState
from iscp_dagster_tests.iteration.works import (
    NAMES,
    Works,
    failure_of,
    last_run,
    spark_jobs,
    until,
    windows_in,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job tries again by itself before a test has looked."""
    monkeypatch.setattr(backoff, "FIRST_DELAY", timedelta(minutes=5))


@pytest.fixture
def two_seconds(works: Works, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Gives a job two seconds for a window, and one more to come back when it is stopped."""
    monkeypatch.setattr(fan_out, "GRACE_SECONDS", 1.0)

    def give(name: str, timeout: str = "2s") -> None:
        api.update_job_spec("shop.items", name, {"timeout": timeout}, log=works.house.log)

    yield give
    for name in NAMES:
        give(name, "1h")


def test_one_that_fails_for_now_is_told_with_its_next_attempt(
    works: Works, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ISCP_FAULT", "raise@before_apply:ledger")
    told = three_advance_without(works, "ledger")
    assert "fault at before_apply:ledger (code 1, tries again at " in told
    job = works.job("ledger")
    assert (job.state, job.attempt, job.status.error_code) == (JobState.COMPLETED, 1, 1)
    monkeypatch.delenv("ISCP_FAULT")
    it_catches_up_alone_and_rejoins(works, "ledger")


def test_one_that_fails_for_good_stops_and_says_so(works: Works, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ISCP_FAULT", "fail@before_apply:copy")
    told = three_advance_without(works, "copy")
    assert told.endswith("fault at before_apply:copy (code 10000)")
    job = works.job("copy")
    assert (job.state, job.next_attempt_at) == (JobState.ERROR, None)
    monkeypatch.delenv("ISCP_FAULT")
    assert works.sync().iterations == 0
    it_catches_up_alone_and_rejoins(works, "copy")


@pytest.mark.parametrize("point", ["before_prepare", "before_apply"])
def test_one_that_hangs_is_given_up_and_can_do_no_harm_when_it_wakes_up(
    works: Works, two_seconds: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, point: str
):
    two_seconds("look")
    monkeypatch.setenv("ISCP_FAULT", f"pause@{point}:look")
    told = three_advance_without(works, "look")
    assert "did not finish its window within 0:00:02" in told
    assert "(code 40, tries again at " in told
    (late,) = [thread for thread in threading.enumerate() if thread.name == "iscp-look"]
    api.update_job_spec("shop.items", "look", {"timeout": "1h"}, log=works.house.log)
    it_catches_up_alone_and_rejoins(works, "look")
    there = windows_in(works.uri(works.job("look")))
    assert late.is_alive()
    monkeypatch.delenv("ISCP_FAULT")
    late.join(60)
    assert not late.is_alive()
    assert windows_in(works.uri(works.job("look"))) == there
    assert works.is_right("look")


def test_one_that_hangs_in_spark_is_stopped_there_too(
    works: Works,
    spark: SparkSession,
    two_seconds: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
):
    two_seconds("ledger")
    monkeypatch.setenv("LEDGER_WORK", "long")
    told = three_advance_without(works, "ledger")
    assert "did not finish its window within 0:00:02" in told
    tag = f"iscp-{last_run(works.instance).run_id}-{works.job('ledger').job_id}"
    long, *_ = spark_jobs(spark, tag)
    until(lambda: running(spark) == [], "Spark is idle", seconds=5)
    assert "FAILED" in {job.status for job in spark_jobs(spark, tag) if job.id == long.id}
    monkeypatch.delenv("LEDGER_WORK")
    it_catches_up_alone_and_rejoins(works, "ledger")


def three_advance_without(works: Works, fourth: str) -> str:
    """Sync a window in which one consumer does not get through; returns what the run says."""
    before, head = works.versions()[0], works.change()
    assert works.sync().iterations == 1
    others = [name for name in NAMES if name != fourth]
    assert works.versions(*others) == [head] * 3
    assert works.versions(fourth) == [before]
    run = last_run(works.instance)
    assert run.status is DagsterRunStatus.FAILURE
    for name in others:
        event = works.materializations(name)[0]
        assert event.metadata["iscp/source_version"].value == head
        assert event.partition == run.tags["iscp/window"]
    assert works.materializations(fourth)[0].metadata["iscp/source_version"].value == before
    told = failure_of(works.instance, run)
    assert told.startswith(f"{works.job(fourth).key} did not advance: ")
    assert not any(f"/{name} " in told for name in others)
    (record, *_) = works.house.log.iterations.list(limit=1)
    assert [one.job_name for one in record.consumers if one.error_code] == [fourth]
    return told


def it_catches_up_alone_and_rejoins(works: Works, fourth: str) -> None:
    """Let the fourth try again: first alone to where the others are, then with them."""
    api.repair_job("shop.items", fourth, log=works.house.log)
    report = works.sync()
    assert (report.iterations, report.behind) == (1, ())
    (record, *_) = works.house.log.iterations.list(limit=1)
    assert record.job_names == (fourth,)
    assert len(set(works.versions())) == 1
    head = works.change()
    assert works.sync().iterations == 1
    assert works.versions() == [head] * len(NAMES)
    assert works.is_right()


def running(spark: SparkSession) -> list[int]:
    return [job.id for job in spark_jobs(spark) if job.status == "RUNNING"]

"""A sync that is told to stop in the middle of an iteration."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from dagster import DagsterRunStatus

from iscp_dagster import api
from iscp_dagster.rules.model import JobState
from iscp_dagster_tests.iteration.works import (
    DELTA,
    NAMES,
    WAIT_SECONDS,
    Works,
    last_run,
    until,
    windows_in,
)
from iscp_dagster_tests.orchestration.processes import is_running, spark_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

IDLE_SECONDS = 5.0
"""Within them Spark is idle: a job is given back only after its work has ended there."""
END_SECONDS = 20.0
"""The process and its JVM have more to tidy up."""
HELD = ",".join(f"hang@before_apply:{name}" for name in DELTA)


def test_an_interrupt_leaves_every_watermark_and_the_next_window_as_they_were(works: Works):
    before = works.versions()
    works.change()
    (planned,) = works.planned()
    sync = works.start(HELD, LEDGER_WORK="long")
    until(lambda: works.job("ledger").state is JobState.RUNNING, "the jobs are running")
    java = until(lambda: spark_of(sync.pid), "Spark is there")
    stop(sync, signal.SIGINT, java, lambda: works.job("ledger").state is JobState.CANCELED)
    assert {(works.job(name).state, works.job(name).attempt) for name in NAMES} == {
        (JobState.CANCELED, 0)
    }
    assert works.versions() == before
    run = last_run(works.instance)
    assert run.status is DagsterRunStatus.CANCELED
    assert works.nothing_is_left()
    # Whoever canceled has a minute's peace; then the same window is next.
    assert works.planned() == []
    for name in NAMES:
        assert api.repair_job("shop.items", name, log=works.house.log)
    (again,) = works.planned()
    assert again.window.partition_key == planned.window.partition_key == run.tags["iscp/window"]
    assert again.job_names == planned.job_names
    assert again.run_key != planned.run_key
    works.catch_up()
    assert works.is_right()


def test_a_terminated_sync_keeps_what_was_committed_and_gives_back_the_rest(works: Works):
    before, head = works.versions("ledger"), works.change()
    sync = works.start("", LEDGER_WORK="long")
    indexes = [works.uri(works.job(name)) for name in DELTA]
    until(lambda: all(windows_in(uri)[-1].end.version == head for uri in indexes), "commits")
    java = spark_of(sync.pid)
    assert java
    stop(sync, signal.SIGTERM, java, lambda: works.job("ledger").state is JobState.CANCELED)
    assert works.job("ledger").state is JobState.CANCELED
    assert works.versions("ledger") == before
    assert works.versions(*DELTA) == [head] * len(DELTA)
    assert {works.job(name).state for name in DELTA} == {JobState.COMPLETED}
    assert last_run(works.instance).status is DagsterRunStatus.CANCELED
    assert works.nothing_is_left()
    window = last_run(works.instance).tags["iscp/window"]
    assert api.repair_job("shop.items", "ledger", log=works.house.log)
    (again,) = works.planned()
    assert (again.window.partition_key, again.job_names) == (window, ("ledger",))
    works.catch_up()
    assert works.is_right()


def stop(
    sync: subprocess.Popen[bytes], number: int, java: list[int], is_idle: Callable[[], bool]
) -> None:
    """Send a signal; Spark is idle at once, and process and JVM are gone soon after."""
    at = time.monotonic()
    sync.send_signal(number)
    until(is_idle, "Spark is idle")
    idle = time.monotonic() - at
    assert sync.wait(WAIT_SECONDS) == 130
    until(lambda: not any(map(is_running, java)), "Spark is gone")
    assert idle < IDLE_SECONDS
    assert time.monotonic() - at < END_SECONDS

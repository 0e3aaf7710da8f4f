"""A claim beside the runner, which writes to the same rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest

from iscp_dagster.errors import ClaimLost, UsageError
from iscp_dagster.iteration.claim import claim_jobs
from iscp_dagster.iteration.request import IterationRequest, Tools
from iscp_dagster.rules.model import JobState
from iscp_dagster_tests.orchestration.house import House, now


def tools(house: House, meanwhile: Callable[[], object] = lambda: None) -> Tools:
    """What a run works with; `meanwhile` happens between its look at a job and its claim."""

    def clock() -> datetime:
        meanwhile()
        return now()

    def no_spark() -> object:
        raise AssertionError("a claim needs no Spark")

    return Tools(
        log=house.log,
        settings=house.settings,
        spark=no_spark,  # pyright: ignore[reportArgumentType]
        is_alive=lambda _: False,
        silence=lambda _: None,
        now=clock,
    )


def request(house: House, *names: str) -> IterationRequest:
    return IterationRequest(
        table=house.job("items", names[0]).key.table_key,
        window=house.window(-1, 0),
        job_names=names,
        run_id="run-1",
    )


def pending(house: House, times: int) -> Callable[[], object]:
    """Say pending so many times, as the runner does for queued runs."""
    left = iter(range(times))

    def write() -> None:
        if next(left, None) is not None:
            status = replace(house.job().status, run_id="run-1")
            house.set("items", "look", state=JobState.PENDING, status=status)

    return write


def test_a_claim_gets_through_while_the_runner_says_pending(house: House):
    house.table()
    house.register()
    claim = claim_jobs(request(house, "look"), tools(house, pending(house, times=2)))
    assert [job.key.name for job in claim.jobs] == ["look"]
    assert claim.refused == ()
    job = house.job()
    assert (job.state, job.status.run_id) == (JobState.RUNNING, "run-1")


def test_a_job_that_never_stands_still_is_given_up(house: House):
    house.table()
    house.register()
    with pytest.raises(ClaimLost):
        claim_jobs(request(house, "look"), tools(house, pending(house, times=1000)))
    assert house.job().state is JobState.PENDING


def test_a_job_that_is_dropped_meanwhile_is_not_claimed(house: House):
    house.table()
    house.register()
    asked = request(house, "look")

    def drop() -> None:
        house.log.jobs.unregister(asked.table.job("look"), now())

    with pytest.raises(UsageError, match="not in the log"):
        claim_jobs(asked, tools(house, drop))


def test_a_job_whose_plug_in_is_gone_stops_and_the_others_are_claimed(house: House):
    house.table()
    house.register("items", "good")
    odd = house.register("items", "odd")
    house.database(
        "update mo_iscp_log set job_spec = replace(job_spec, 'lookup', ?) where job_id = ?",
        "vanished",
        odd.job_id,
    )
    claim = claim_jobs(request(house, "good", "odd"), tools(house))
    assert [job.key.name for job in claim.jobs] == ["good"]
    job = house.job("items", "odd")
    assert job.state is JobState.ERROR
    assert "vanished" in job.status.error_msg
    assert job.watermark.is_zero

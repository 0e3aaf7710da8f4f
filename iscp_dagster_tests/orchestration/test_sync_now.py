"""`iscp_sync_now` from the launchpad: what `iscp sync` does, inside a Dagster run."""

from __future__ import annotations

from typing import Any

import pytest
from dagster import DagsterInstance, DagsterRunStatus, ExecuteInProcessResult

from iscp_dagster_tests.orchestration.house import House

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def sync_now(house: House, instance: DagsterInstance, **config: Any) -> ExecuteInProcessResult:
    job = house.definitions().get_job_def("iscp_sync_now")
    return job.execute_in_process(
        instance=instance,
        run_config={"ops": {"sync_now": {"config": config}}},
        raise_on_error=False,
    )


def why(result: ExecuteInProcessResult) -> str:
    (failed,) = result.filter_events(lambda event: event.is_step_failure)
    assert failed.step_failure_data.error is not None
    return failed.step_failure_data.error.message


def test_the_chosen_jobs_of_a_table_are_brought_up_to_date(house: House, instance: DagsterInstance):
    house.table("items")
    house.table("other")
    for name in ("one", "two"):
        house.register("items", name)
    house.register("other", "one")

    done = sync_now(house, instance, table="shop.items", jobs=["one"])
    assert done.success
    assert house.job("items", "one").watermark.version == 0
    assert house.job("items", "two").watermark.is_zero
    assert house.job("other", "one").watermark.is_zero
    inner = [run for run in instance.get_runs() if run.run_id != done.run_id]
    assert [(run.status, run.tags["iscp/jobs"]) for run in inner] == [
        (DagsterRunStatus.SUCCESS, '["one"]')
    ]

    assert sync_now(house, instance, table="shop.items").success
    assert house.job("items", "two").watermark.version == 0
    assert house.job("other", "one").watermark.is_zero


def test_a_table_or_job_that_is_not_there_fails_the_run(house: House, instance: DagsterInstance):
    house.table("items")
    house.register("items", "one")
    assert "shop.items has no 'nope'" in why(
        sync_now(house, instance, table="shop.items", jobs=["nope"])
    )
    assert "nothing" in why(sync_now(house, instance, table="shop.nothing"))
    assert house.job("items", "one").watermark.is_zero


def test_a_job_that_can_not_catch_up_fails_the_run_with_its_reason(
    house: House, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    house.table("items")
    house.register("items", "one")
    monkeypatch.setenv("ISCP_FAULT", "fail@before_apply:one")
    result = sync_now(house, instance, table="shop.items", attempts=1)
    assert not result.success
    assert "sys/shop/items/one" in why(result)

"""Flushing idle watermarks, and forgetting old windows."""

from __future__ import annotations

import pytest
from dagster import DagsterInstance, DagsterRunStatus

from iscp_dagster.maintenance.flush import flush_watermarks
from iscp_dagster.orchestration.names import partitions_name
from iscp_dagster.orchestration.partitions import prune_windows
from iscp_dagster.orchestration.runner import Runner
from iscp_dagster.orchestration.runs import flights
from iscp_dagster.rules.model import JobState, Stage, TableKey
from iscp_dagster_tests.orchestration.house import House, now, run_of

ITEMS = TableKey("sys", "shop", "items")


def test_idle_watermarks_go_to_the_log_and_nothing_else(house: House):
    house.table()
    house.standing("items", "idle", 0)
    house.table("busy")
    house.standing("busy", "look", 0)
    house.commit("busy")
    house.set("items", "idle", attempt=0, stage=Stage.TAIL)
    before = house.job("items", "idle")
    changed = house.job("busy")
    house.set_property()
    assert flush_watermarks(house.log, [], now()) == 1
    after = house.job("items", "idle")
    assert after.watermark.version == 1
    assert (after.state, after.stage, after.attempt) == (before.state, before.stage, 0)
    assert after.status == before.status
    assert house.job("busy") == changed
    assert flush_watermarks(house.log, [], now()) == 0


def test_a_failing_job_keeps_its_error_attempt_and_watermark(house: House):
    house.table()
    house.standing("items", "look", 0)
    before = house.set("items", "look", attempt=3, next_attempt_at=now().replace(year=2999))
    house.set_property()
    assert flush_watermarks(house.log, [], now()) == 0
    assert house.job() == before


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING, JobState.ERROR])
def test_a_job_that_somebody_holds_is_not_flushed(house: House, state: JobState):
    house.table()
    house.standing("items", "look", 0)
    before = house.set("items", "look", state=state)
    house.set_property()
    assert flush_watermarks(house.log, [], now()) == 0
    assert house.job() == before


def test_a_job_in_flight_is_not_flushed(house: House, instance: DagsterInstance):
    house.table()
    house.standing("items", "look", 0)
    house.commit()
    runner = Runner(house.log)
    (iteration,) = runner.tick([], now()).plan.iterations
    run_of(instance, iteration, runner.jobs)
    before = house.job()
    flying = [flight.in_flight for flight in flights(instance)]
    assert flush_watermarks(house.log, flying, now()) == 0
    assert house.job() == before


def test_a_runner_goes_on_from_a_flushed_watermark(house: House):
    house.table()
    house.standing("items", "look", 0)
    runner = Runner(house.log)
    runner.tick([], now())
    house.set_property()
    flush_watermarks(house.log, [], now())
    house.commit()
    (iteration,) = runner.tick([], now()).plan.iterations
    assert str(iteration.window) == "(v1, v2]"


def windows(house: House, instance: DagsterInstance, count: int) -> list[str]:
    for _ in range(count):
        house.commit()
    keys = [house.window(v - 1, v).partition_key for v in range(1, count + 1)]
    instance.add_dynamic_partitions(partitions_name(ITEMS), keys)
    return keys


def left(instance: DagsterInstance) -> set[str]:
    return set(instance.get_dynamic_partitions(partitions_name(ITEMS)))


def test_windows_go_once_no_job_needs_them_and_the_newest_stay(
    house: House, instance: DagsterInstance
):
    house.table()
    keys = windows(house, instance, 8)
    house.standing("items", "fast", 8)
    house.standing("items", "slow", 4)
    assert prune_windows(house.log, instance, keep=2) == 4
    assert left(instance) == set(keys[4:])
    assert prune_windows(house.log, instance, keep=2) == 0


def test_the_window_of_a_run_in_flight_stays(house: House, instance: DagsterInstance):
    house.table()
    keys = windows(house, instance, 3)
    house.standing("items", "look", 0, max_window_versions=1)
    runner = Runner(house.log)
    (iteration,) = runner.tick([], now()).plan.iterations
    assert iteration.window.partition_key == keys[0]
    run_of(instance, iteration, runner.jobs, DagsterRunStatus.STARTED)
    house.set("items", "look", watermark=house.ts("items", 3))
    prune_windows(house.log, instance, keep=1)
    assert left(instance) == {keys[0], keys[2]}


def test_a_job_that_cant_be_read_keeps_all_windows(house: House, instance: DagsterInstance):
    house.table()
    keys = windows(house, instance, 3)
    house.standing("items", "look", 3)
    odd = house.standing("items", "odd", 0)
    house.database("update mo_iscp_log set watermark = '?' where job_id = ?", odd.job_id)
    assert prune_windows(house.log, instance, keep=1) == 0
    assert left(instance) == set(keys)

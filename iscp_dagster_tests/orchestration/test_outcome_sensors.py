"""The sensors on the end of runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dagster import (
    DagsterEvent,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    SkipReason,
    build_run_status_sensor_context,
)
from dagster._core.events import DagsterEventType

from iscp_dagster.orchestration.runner import Runner
from iscp_dagster.rules.model import JobState
from iscp_dagster_tests.orchestration.house import House, make_run, now, run_of

ENDS = {
    "iscp_on_success": (DagsterRunStatus.SUCCESS, DagsterEventType.RUN_SUCCESS),
    "iscp_on_failure": (DagsterRunStatus.FAILURE, DagsterEventType.RUN_FAILURE),
    "iscp_on_canceled": (DagsterRunStatus.CANCELED, DagsterEventType.RUN_CANCELED),
}


@pytest.fixture
def changed(house: House) -> House:
    house.table()
    house.standing("items", "look", 0)
    house.commit()
    return house


def ended(house: House, instance: DagsterInstance, name: str) -> DagsterRun:
    """A run for the house's job that ended in the way the sensor is for."""
    runner = Runner(house.log)
    (iteration,) = runner.tick([], now()).plan.iterations
    return run_of(instance, iteration, runner.jobs, ENDS[name][0])


def evaluate(house: House, instance: DagsterInstance, name: str, run: DagsterRun) -> str:
    sensor = house.definitions().get_repository_def().get_sensor_def(name)
    event = DagsterEvent(ENDS[name][1].value, run.job_name)
    context = build_run_status_sensor_context(
        sensor_name=name, dagster_event=event, dagster_instance=instance, dagster_run=run
    )
    result = sensor(context)
    assert isinstance(result, SkipReason)
    return result.skip_message or ""


@pytest.mark.parametrize(
    ("name", "state", "attempt"),
    [
        ("iscp_on_success", JobState.COMPLETED, 0),
        ("iscp_on_failure", JobState.COMPLETED, 1),
        ("iscp_on_canceled", JobState.CANCELED, 0),
    ],
)
def test_a_pending_job_is_settled_as_its_run_ended(
    changed: House, instance: DagsterInstance, name: str, state: JobState, attempt: int
):
    run = ended(changed, instance, name)
    status = replace(changed.job().status, run_id=run.run_id)
    changed.set("items", "look", state=JobState.PENDING, status=status)
    assert run.run_id in evaluate(changed, instance, name, run)
    job = changed.job()
    assert (job.state, job.attempt, job.watermark.version) == (state, attempt, 0)


def test_a_run_that_recorded_its_own_outcome_is_left_alone(
    changed: House, instance: DagsterInstance
):
    run = ended(changed, instance, "iscp_on_failure")
    status = replace(changed.job().status, run_id=run.run_id)
    before = changed.set("items", "look", state=JobState.COMPLETED, attempt=1, status=status)
    said = evaluate(changed, instance, "iscp_on_failure", run)
    assert "recorded its own outcome" in said
    assert changed.job() == before


def test_a_job_that_another_run_holds_by_now_is_left_alone(
    changed: House, instance: DagsterInstance
):
    run = ended(changed, instance, "iscp_on_failure")
    status = replace(changed.job().status, run_id="another")
    before = changed.set("items", "look", state=JobState.RUNNING, status=status)
    evaluate(changed, instance, "iscp_on_failure", run)
    assert changed.job() == before


def test_runs_of_others_are_passed_over(changed: House, instance: DagsterInstance):
    run = make_run(instance, DagsterRunStatus.FAILURE, {})
    assert evaluate(changed, instance, "iscp_on_failure", run) == "not a run of iscp"

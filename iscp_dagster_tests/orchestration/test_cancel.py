"""Ending what is queued for jobs that are dropped or interrupted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from iscp_dagster import api
from iscp_dagster.cli.main import main
from iscp_dagster.orchestration.cancel import cancel_runs_of
from iscp_dagster.orchestration.instance import open_instance
from iscp_dagster.orchestration.runner import Runner
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import JobState
from iscp_dagster_tests.orchestration.house import House, Sensor, now, run_of


@pytest.fixture
def at_home(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[DagsterInstance]:
    """The Dagster instance of the home, with its queue."""
    monkeypatch.setenv("DAGSTER_HOME", str(house.settings.home))
    with open_instance(house.settings) as instance:
        yield instance


def queue(house: House, instance: DagsterInstance) -> list[tuple[Iteration, DagsterRun]]:
    """Queue a run for everything that is due, and let a tick see them."""
    runner = Runner(house.log)
    iterations = runner.tick([], now()).plan.iterations
    runs = [(one, run_of(instance, one, runner.jobs)) for one in iterations]
    Sensor(instance, house.definitions()).tick()
    return runs


def status(instance: DagsterInstance, run: DagsterRun) -> DagsterRunStatus:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


def test_a_run_for_the_job_alone_is_canceled_and_a_shared_one_is_not(
    house: House, at_home: DagsterInstance
):
    house.table()
    house.standing("items", "a", 0)
    house.standing("items", "b", 0)
    house.standing("items", "alone", 0, trigger={"kind": "greedy"})
    house.commit()
    runs = {one.job_names: run for one, run in queue(house, at_home)}
    key = house.job("items", "alone").key
    assert cancel_runs_of(at_home, key) == [runs["alone",].run_id]
    assert cancel_runs_of(at_home, house.job("items", "a").key) == []
    assert status(at_home, runs["alone",]) is DagsterRunStatus.CANCELED
    assert status(at_home, runs["a", "b"]) is DagsterRunStatus.QUEUED


def test_a_job_of_the_same_name_on_another_table_is_left_alone(
    house: House, at_home: DagsterInstance
):
    for name in ("one", "two"):
        house.table(name)
        house.register(name)
    runs = {one.table.table: run for one, run in queue(house, at_home)}
    assert cancel_runs_of(at_home, house.job("one").key) == [runs["one"].run_id]
    assert status(at_home, runs["two"]) is DagsterRunStatus.QUEUED


def test_alter_with_interrupt_cancels_what_is_queued_and_counts_no_failure(
    house: House, at_home: DagsterInstance, capsys: pytest.CaptureFixture[str]
):
    house.table()
    house.register()
    ((iteration, run),) = queue(house, at_home)
    assert house.job().state is JobState.PENDING
    with pytest.raises(SystemExit) as ended:
        main(["alter", "shop.items", "look", "--priority", "9", "--interrupt"])
    assert ended.value.code == 0
    assert "1 runs canceled" in capsys.readouterr().out
    assert status(at_home, run) is DagsterRunStatus.CANCELED
    sensor = Sensor(at_home, house.definitions())
    sensor.tick()
    job = house.job()
    assert (job.state, job.attempt, job.spec.priority) == (JobState.CANCELED, 0, 9)
    house.set("items", "look", next_attempt_at=now())
    (again,) = sensor.tick().run_requests or []
    assert again.run_key != iteration.run_key
    assert again.tags["dagster/priority"] == "9"


def test_alter_without_interrupt_lets_the_queued_run_go_on(house: House, at_home: DagsterInstance):
    house.table()
    house.register()
    ((_, run),) = queue(house, at_home)
    with pytest.raises(SystemExit):
        main(["alter", "shop.items", "look", "--priority", "9"])
    assert status(at_home, run) is DagsterRunStatus.QUEUED
    assert house.job().state is JobState.PENDING


def test_unregister_cancels_what_is_queued_and_an_heir_starts_anew(
    house: House, at_home: DagsterInstance, capsys: pytest.CaptureFixture[str]
):
    house.table()
    house.register()
    ((iteration, run),) = queue(house, at_home)
    with pytest.raises(SystemExit):
        main(["unregister", "shop.items", "look"])
    assert "1 runs canceled" in capsys.readouterr().out
    assert status(at_home, run) is DagsterRunStatus.CANCELED
    sensor = Sensor(at_home, house.definitions())
    assert not sensor.tick().run_requests
    assert api.get_jobs(log=house.log) == []
    house.register()
    (request,) = Sensor(at_home, house.definitions()).tick().run_requests or []
    assert request.run_key != iteration.run_key
    assert request.partition_key == iteration.window.partition_key

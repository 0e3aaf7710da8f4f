"""The runner's sensor, evaluated with a real Dagster instance."""

from __future__ import annotations

import json
import shutil

import pytest
from dagster import (
    AssetKey,
    AssetObservation,
    DagsterInstance,
    DagsterRunStatus,
    DynamicPartitionsDefinition,
    SensorResult,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG

from iscp_dagster import api
from iscp_dagster.orchestration.runner import Runner
from iscp_dagster.rules.model import JobState
from iscp_dagster_tests.orchestration.house import House, Sensor, dump, make_run, now, run_of


@pytest.fixture
def changed(house: House) -> House:
    """One table, changed since its two jobs stood at its first version."""
    house.table()
    house.standing("items", "a", 0)
    house.standing("items", "b", 0, priority=7)
    house.commit()
    return house


def observed(result: SensorResult) -> dict[str, str]:
    """The tables that a tick observed, with their data version."""
    events = [one for one in result.asset_events if isinstance(one, AssetObservation)]
    return {"/".join(one.asset_key.path): (one.tags or {})[DATA_VERSION_TAG] for one in events}


def test_a_request_carries_window_jobs_and_priority(changed: House, instance: DagsterInstance):
    result = Sensor(instance, changed.definitions()).tick()
    (request,) = result.run_requests or []
    window = changed.window(0, 1)
    assert request.partition_key == window.partition_key
    assert request.run_key is not None
    assert request.run_key.startswith(f"sys/shop/items:{window.partition_key}:")
    assert request.asset_selection == [
        AssetKey(["sys", "shop", "items", name]) for name in ("a", "b")
    ]
    assert request.tags == {
        "iscp/table": "sys/shop/items",
        "iscp/jobs": json.dumps(["a", "b"]),
        "iscp.job/a": "yes",
        "iscp.job/b": "yes",
        "iscp/window": window.partition_key,
        "iscp/attempt": "0",
        "iscp/account": "sys",
        "iscp/trigger": "default",
        "iscp/kind": "tail",
        "dagster/priority": "7",
        "dagster/max_runtime": str(3600 + 600),
    }


def test_the_windows_of_the_requests_become_partitions(changed: House, instance: DagsterInstance):
    result = Sensor(instance, changed.definitions()).tick()
    (wanted,) = result.dynamic_partitions_requests or []
    assert wanted.partitions_def_name == "iscp/sys/shop/items"
    assert list(wanted.partition_keys) == [changed.window(0, 1).partition_key]
    graph = changed.definitions().resolve_asset_graph()
    partitions = graph.get(AssetKey(["sys", "shop", "items", "a"])).partitions_def
    assert isinstance(partitions, DynamicPartitionsDefinition)
    assert partitions.name == wanted.partitions_def_name


def test_a_changed_table_is_observed_once_with_its_version(
    changed: House, instance: DagsterInstance
):
    sensor = Sensor(instance, changed.definitions())
    assert observed(sensor.tick()) == {"sys/shop/items": "1"}
    assert observed(sensor.tick()) == {}
    changed.commit()
    assert observed(sensor.tick()) == {"sys/shop/items": "2"}


def test_a_tick_with_nothing_to_do_says_why(house: House, instance: DagsterInstance):
    house.table()
    house.standing("items", "look", 0)
    house.table("later")
    house.standing("later", "look", 0, trigger={"kind": "periodic", "interval": "1h"})
    house.commit("later")
    result = Sensor(instance, house.definitions()).tick()
    assert not result.run_requests
    said = result.skip_reason.skip_message if result.skip_reason else ""
    assert said is not None
    assert said.startswith("2 tables: 1 unchanged, 1 due in ")


def test_an_empty_log_says_so(house: House, instance: DagsterInstance):
    result = Sensor(instance, house.definitions()).tick()
    assert result.skip_reason is not None
    assert result.skip_reason.skip_message == "no tables"


def test_a_tick_asks_for_no_more_runs_than_there_are_slots(
    house: House, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ISCP_MAX_RUNS", "3")
    for i in range(5):
        house.table(f"t{i}")
        house.register(f"t{i}", priority=i)
    sensor = Sensor(instance, house.definitions())
    requests = sensor.tick().run_requests or []
    assert [request.tags["iscp/table"] for request in requests] == [
        "sys/shop/t4",
        "sys/shop/t3",
        "sys/shop/t2",
    ]
    runner = Runner(house.log)
    decided = runner.tick([], now()).plan
    for iteration in decided.iterations[:2]:
        run_of(instance, iteration, runner.jobs)
    requests = sensor.tick().run_requests or []
    assert [request.tags["iscp/table"] for request in requests] == ["sys/shop/t2"]


def test_jobs_registered_after_the_load_take_no_slot_and_hold_nobody_up(
    house: House, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ISCP_MAX_RUNS", "1")
    house.table()
    house.standing("items", "old", 0)
    definitions = house.definitions()
    house.standing("items", "young", 0, priority=100)
    house.commit()
    (request,) = Sensor(instance, definitions).tick().run_requests or []
    assert request.tags["iscp/jobs"] == '["old"]'
    (request,) = Sensor(instance, house.definitions()).tick().run_requests or []
    assert request.tags["iscp/jobs"] == '["old", "young"]'


def test_the_test_button_leaves_nothing_behind(changed: House, instance: DagsterInstance):
    changed.table("gone")
    changed.standing("gone", "look", 0)
    changed.table("stuck")
    changed.standing("stuck", "look", 0)
    changed.set("stuck", "look", state=JobState.RUNNING)
    sensor = Sensor(instance, changed.definitions())
    sensor.tick()
    shutil.rmtree(changed.path("gone"))
    changed.commit()
    changed.set("stuck", "look", state=JobState.RUNNING)
    make_run(instance, DagsterRunStatus.QUEUED, {"iscp/table": "odd"})
    before = dump(changed.settings.home), dump(changed.settings.home.parent / "dagster")
    assert before[0]
    assert before[1]
    tested = sensor.test()
    assert len(tested.run_requests or []) == 1
    assert observed(tested) == {"sys/shop/items": "2"}
    assert (dump(changed.settings.home), dump(changed.settings.home.parent / "dagster")) == before
    # And the daemon's next tick finds all there was to find.
    assert observed(sensor.tick()) == {"sys/shop/items": "2"}
    assert changed.job("gone").state is JobState.ERROR
    assert changed.job("stuck").state is JobState.COMPLETED


def test_a_queued_run_makes_its_jobs_pending(changed: House, instance: DagsterInstance):
    runner = Runner(changed.log)
    (iteration,) = runner.tick([], now()).plan.iterations
    run = run_of(instance, iteration, runner.jobs)
    result = Sensor(instance, changed.definitions()).tick()
    assert not result.run_requests
    for name in ("a", "b"):
        job = changed.job("items", name)
        assert (job.state, job.status.run_id) == (JobState.PENDING, run.run_id)
        assert job.watermark.version == 0


def test_a_table_that_is_gone_is_written_to_its_jobs(house: House, instance: DagsterInstance):
    house.table()
    house.standing("items", "look", 0)
    sensor = Sensor(instance, house.definitions())
    shutil.rmtree(house.path("items"))
    sensor.tick()
    job = house.job()
    assert job.state is JobState.ERROR
    assert job.status.error_code == 10_030
    assert "sys/shop/items is gone" in job.status.error_msg
    assert job.watermark.version == 0
    # It stays so until somebody repairs it.
    house.commit()
    result = sensor.tick()
    assert not result.run_requests
    assert house.job().state is JobState.ERROR


def test_a_log_that_is_away_is_reported_and_the_next_tick_goes_on(
    changed: House, instance: DagsterInstance
):
    sensor = Sensor(instance, changed.definitions())
    changed.database("alter table mo_iscp_log rename to elsewhere")
    result = sensor.tick()
    assert not result.run_requests
    assert result.skip_reason is not None
    assert "does not answer" in (result.skip_reason.skip_message or "")
    changed.database("alter table elsewhere rename to mo_iscp_log")
    result = sensor.tick()
    assert len(result.run_requests or []) == 1
    assert len(result.asset_events) == 1


def test_a_log_that_goes_away_before_the_tick_is_settled_loses_no_observation(
    changed: House, instance: DagsterInstance
):
    sensor = Sensor(instance, changed.definitions())
    changed.database("alter table mo_iscp_iterations rename to elsewhere")
    assert not sensor.tick().asset_events
    changed.database("alter table elsewhere rename to mo_iscp_iterations")
    assert len(sensor.tick().asset_events) == 1


def test_an_unreadable_row_and_table_leave_the_others_alone(
    changed: House, instance: DagsterInstance
):
    changed.table("bad")
    changed.standing("bad", "look", 0)
    changed.commit("bad")
    (changed.path("bad") / "_delta_log" / f"{1:020d}.json").write_bytes(b"nonsense")
    odd = changed.standing("items", "odd", 0)
    definitions = changed.definitions()
    changed.database("update mo_iscp_log set watermark = '?' where job_id = ?", odd.job_id)
    (request,) = Sensor(instance, definitions).tick().run_requests or []
    assert request.tags["iscp/jobs"] == '["a", "b"]'


def test_each_shard_has_a_sensor_and_none_plans_anothers_table(
    house: House, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ISCP_MAX_RUNS", "100")
    for i in range(12):
        house.table(f"t{i}", rows=1)
        house.register(f"t{i}")
    monkeypatch.setenv("ISCP_RUNNER_SHARDS", "2")
    from iscp_dagster.orchestration.build import build_definitions
    from iscp_dagster.settings import Settings

    definitions = build_definitions(Settings.from_env())
    asked = [
        request.tags["iscp/table"]
        for name in ("iscp_runner_0", "iscp_runner_1")
        for request in Sensor(instance, definitions, name).tick().run_requests or []
    ]
    assert sorted(asked) == sorted(f"sys/shop/t{i}" for i in range(12))


def test_a_spent_key_of_a_failed_run_counts_as_an_attempt_and_a_new_key_follows(
    changed: House, instance: DagsterInstance
):
    """A run may fail before it claims its jobs, and before any tick has seen it queued."""
    sensor = Sensor(instance, changed.definitions())
    (first,) = sensor.tick().run_requests or []
    runner = Runner(changed.log)
    (iteration,) = runner.tick([], now()).plan.iterations
    assert iteration.run_key == first.run_key
    run = run_of(instance, iteration, runner.jobs, DagsterRunStatus.FAILURE)
    assert not sensor.tick().run_requests
    for name in ("a", "b"):
        job = changed.job("items", name)
        assert (job.state, job.attempt, job.watermark.version) == (JobState.COMPLETED, 1, 0)
        assert job.next_attempt_at is not None
        assert run.run_id in job.status.error_msg
    for name in ("a", "b"):
        changed.set("items", name, next_attempt_at=now())
    (again,) = sensor.tick().run_requests or []
    assert again.run_key != first.run_key
    assert again.tags["iscp/attempt"] == "1"
    assert again.partition_key == first.partition_key


def test_a_spent_key_of_a_canceled_run_counts_no_attempt(changed: House, instance: DagsterInstance):
    sensor = Sensor(instance, changed.definitions())
    (first,) = sensor.tick().run_requests or []
    runner = Runner(changed.log)
    (iteration,) = runner.tick([], now()).plan.iterations
    run_of(instance, iteration, runner.jobs, DagsterRunStatus.CANCELED)
    assert not sensor.tick().run_requests
    job = changed.job("items", "a")
    assert (job.state, job.attempt) == (JobState.CANCELED, 0)
    for name in ("a", "b"):
        changed.set("items", name, next_attempt_at=now())
    (again,) = sensor.tick().run_requests or []
    assert again.run_key != first.run_key
    assert again.tags["iscp/attempt"] == "0"


def test_a_paused_job_is_left_out_of_the_run_of_the_others(
    changed: House, instance: DagsterInstance
):
    api.pause_job("shop.items", "a", log=changed.log)
    (request,) = Sensor(instance, changed.definitions()).tick().run_requests or []
    assert request.tags["iscp/jobs"] == '["b"]'

"""`iscp sync`: the same plan, executed in this process on real Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey, AssetMaterialization, DagsterInstance, DagsterRunStatus, RunsFilter

from iscp_dagster import api
from iscp_dagster.cli.main import main
from iscp_dagster.orchestration.instance import open_instance
from iscp_dagster.orchestration.names import partitions_name
from iscp_dagster.orchestration.runner import Runner
from iscp_dagster.orchestration.sync import SyncReport, sync
from iscp_dagster.rules.model import Job, JobState
from iscp_dagster.settings import Settings
from iscp_dagster.stores.paths import index_uri
from iscp_dagster_tests.orchestration.house import House, now, run_of
from iscp_dagster_tests.orchestration.processes import is_running, spark_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

METADATA = {
    "iscp/from_ts",
    "iscp/to_ts",
    "iscp/watermark",
    "iscp/source_version",
    "iscp/rows_scanned",
    "iscp/rows_upserted",
    "iscp/rows_deleted",
    "iscp/rows_skipped",
    "iscp/shared_by",
    "iscp/scan_seconds",
    "iscp/consumer_seconds",
    "iscp/lag_seconds",
    "dagster/row_count",
    "dagster/uri",
    "dagster/column_schema",
}
WAIT_SECONDS = 120


@pytest.fixture
def at_home(home: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[DagsterInstance]:
    """The Dagster instance of the home, which other processes use too."""
    monkeypatch.setenv("DAGSTER_HOME", str(home.home))
    with open_instance(home) as instance:
        yield instance


Processes = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Starts a sync in a process of its own, with a fault."""
    started: list[subprocess.Popen[bytes]] = []

    def start(fault: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", "from iscp_dagster.cli.main import main; main(['sync'])"],
            env={**os.environ, "ISCP_FAULT": fault},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def rows(house: House, job: Job) -> int:
    """How many rows an index has."""
    from pyspark.sql import SparkSession

    uri = index_uri(house.settings.warehouse, job.key, job.job_id)
    return SparkSession.builder.getOrCreate().read.format("delta").load(uri).count()


def materializations(instance: DagsterInstance, job: Job) -> list[AssetMaterialization]:
    """What Dagster has of an index, newest first."""
    found = instance.fetch_materializations(AssetKey(job.key.asset_path), limit=100)
    events = [record.asset_materialization for record in found.records]
    return [event for event in events if event is not None]


def behind(report: SyncReport) -> dict[str, str]:
    return {job.key.name: reason for job, reason in report.behind}


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)
    return found


def test_everything_is_caught_up_and_recorded_then_there_is_nothing_to_do(
    house: House, instance: DagsterInstance
):
    house.table("a", rows=4)
    house.table("b", rows=2)
    house.commit("a")
    house.register("a", "one")
    house.register("a", "two")
    house.register("b", "one")
    done: list[bool] = []
    report = sync(house.settings, instance, on_iteration=lambda _, well: done.append(well))
    assert report.behind == ()
    assert done == [True] * 3
    assert report.summary == "2 tables: 2 unchanged"
    jobs = [house.job("a", "one"), house.job("a", "two"), house.job("b", "one")]
    assert [(job.state, job.watermark.version) for job in jobs] == [
        (JobState.COMPLETED, 1),
        (JobState.COMPLETED, 1),
        (JobState.COMPLETED, 0),
    ]
    assert [rows(house, job) for job in jobs] == [5, 5, 2]
    event = materializations(instance, jobs[0])[0]
    assert event.metadata.keys() >= METADATA
    assert event.metadata["iscp/source_version"].value == 1
    assert event.metadata["iscp/rows_upserted"].value == 5
    assert event.metadata["dagster/row_count"].value == 5
    assert event.partition == house.window(-1, 1, "a").partition_key
    assert event.partition in instance.get_dynamic_partitions(
        partitions_name(jobs[0].key.table_key)
    )
    assert [record.end_at is not None for record in house.log.iterations.list()] == [True] * 3

    assert sync(house.settings, instance).iterations == 0

    house.commit("a", rows=2)
    report = sync(house.settings, instance)
    assert report.iterations == 1
    (shared, *_) = materializations(instance, house.job("a", "one"))
    assert shared.metadata["iscp/shared_by"].value == "one, two"
    assert shared.metadata["iscp/rows_scanned"].value == 2
    assert rows(house, house.job("a", "two")) == 7
    run = instance.get_runs(limit=1)[0]
    assert run.tags["iscp/jobs"] == '["one", "two"]'
    assert run.status is DagsterRunStatus.SUCCESS
    assert run.asset_selection == {AssetKey(job.key.asset_path) for job in jobs[:2]}
    assert not run.asset_check_selection
    seen = instance.fetch_observations(AssetKey(jobs[0].key.table_key.asset_path), limit=9).records
    versions = [(one.asset_observation.tags or {}) for one in seen if one.asset_observation]
    assert [tags["dagster/data_version"] for tags in versions] == ["2", "1"]


def test_a_failing_consumer_leaves_the_others_be_and_rejoins_them(
    house: House, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    house.table()
    for name in ("bad", "good", "well"):
        house.register("items", name)
    sync(house.settings, instance)
    house.commit()
    monkeypatch.setenv("ISCP_FAULT", "raise@before_apply:bad")
    report = sync(house.settings, instance, attempts=1)
    assert list(behind(report)) == ["bad"]
    assert "fault at before_apply:bad" in behind(report)["bad"]
    bad = house.job("items", "bad")
    assert (bad.state, bad.attempt, bad.watermark.version) == (JobState.COMPLETED, 1, 0)
    assert rows(house, bad) == 3
    assert [house.job("items", name).watermark.version for name in ("good", "well")] == [1, 1]
    # The others go on without it.
    house.commit()
    sync(house.settings, instance, attempts=1)
    assert [house.job("items", name).watermark.version for name in ("good", "well")] == [2, 2]
    monkeypatch.delenv("ISCP_FAULT")
    house.commit()
    report = sync(house.settings, instance)
    assert report.behind == ()
    jobs = [house.job("items", name) for name in ("bad", "good", "well")]
    assert {(job.watermark.version, job.attempt, job.status.error_code) for job in jobs} == {
        (3, 0, 0)
    }
    assert [rows(house, job) for job in jobs] == [6, 6, 6]
    # Each version went into the laggard exactly once.
    windows = [
        (record.window.start.version, record.window.end.version)
        for record in reversed(house.log.iterations.list())
        for consumer in record.consumers
        if consumer.job_name == "bad" and not consumer.error_code
    ]
    assert [end for _, end in windows][-1] == 3
    assert all(one[1] == other[0] for one, other in pairwise(windows))
    house.commit()
    assert sync(house.settings, instance).iterations == 1


def test_a_permanent_error_is_kept_until_it_is_repaired(
    house: House, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    house.table()
    house.register("items", "bad")
    house.register("items", "good")
    monkeypatch.setenv("ISCP_FAULT", "fail@before_apply:bad")
    report = sync(house.settings, instance)
    assert "`iscp repair`" in behind(report)["bad"]
    job = house.job("items", "bad")
    assert (job.state, job.status.error_code, job.watermark.is_zero) == (
        JobState.ERROR,
        10_000,
        True,
    )
    assert house.job("items", "good").watermark.version == 0
    monkeypatch.delenv("ISCP_FAULT")
    assert sync(house.settings, instance).iterations == 0
    api.repair_job("shop.items", "bad", log=house.log)
    assert sync(house.settings, instance).behind == ()
    assert house.job("items", "bad").watermark.version == 0


def test_a_window_that_is_in_the_index_already_still_materializes(
    house: House, instance: DagsterInstance
):
    """What a crash between the store's commit and the log's write leaves."""
    house.table()
    house.register()
    sync(house.settings, instance)
    house.commit()
    sync(house.settings, instance)
    house.set("items", "look", watermark=house.ts("items", 0))
    assert sync(house.settings, instance).iterations == 1
    job = house.job()
    assert (job.state, job.watermark.version, job.attempt) == (JobState.COMPLETED, 1, 0)
    event = materializations(instance, job)[0]
    assert event.metadata["iscp/kind"].value == "no-op"
    assert event.metadata["iscp/source_version"].value == 1
    assert rows(house, job) == 4


def test_an_index_that_is_ahead_of_the_log_goes_on_from_where_it_stands(
    house: House, instance: DagsterInstance
):
    house.table()
    house.register()
    sync(house.settings, instance)
    house.commit()
    sync(house.settings, instance)
    house.set("items", "look", watermark=house.ts("items", 0))
    house.commit()
    report = sync(house.settings, instance)
    assert report.behind == ()
    assert house.job().watermark.version == 2
    assert house.job().attempt == 0
    assert rows(house, house.job()) == 5


def test_an_index_that_cant_be_read_is_its_own_jobs_failure(
    house: House, instance: DagsterInstance
):
    house.table()
    house.register("items", "bad")
    house.register("items", "good")
    sync(house.settings, instance)
    bad = house.job("items", "bad")
    log = Path(index_uri(house.settings.warehouse, bad.key, bad.job_id)) / "_delta_log"
    whole = {file: file.read_bytes() for file in log.glob("*.json")}
    for file in whole:
        file.write_bytes(b"nonsense")
    house.commit()
    report = sync(house.settings, instance, attempts=1)
    assert list(behind(report)) == ["bad"]
    assert house.job("items", "good").watermark.version == 1
    bad = house.job("items", "bad")
    assert (bad.attempt, bad.watermark.version) == (1, 0)
    assert bad.status.error_msg
    for file, content in whole.items():
        file.write_bytes(content)
    assert sync(house.settings, instance).behind == ()
    assert house.job("items", "bad").watermark.version == 1


def test_what_cant_be_read_is_named_and_the_rest_is_caught_up(
    house: House, instance: DagsterInstance
):
    house.table("bad")
    house.standing("bad", "look", 0)
    house.commit("bad")
    (house.path("bad") / "_delta_log" / f"{1:020d}.json").write_bytes(b"nonsense")
    house.table("good")
    house.register("good")
    odd = house.standing("good", "odd", 0)
    house.database("update mo_iscp_log set job_spec = '{}' where job_id = ?", odd.job_id)
    report = sync(house.settings, instance)
    assert {str(job.key) for job, _ in report.behind} == {
        "sys/shop/bad/look",
        "sys/shop/good/odd",
    }
    assert house.job("good").watermark.version == 0


def test_only_the_named_tables_are_synced(house: House, instance: DagsterInstance):
    key = house.table("a")
    house.table("b")
    house.register("a")
    house.register("b")
    assert sync(house.settings, instance, tables=[key]).iterations == 1
    assert house.job("b").watermark.is_zero


def test_a_paused_job_stands_still_and_is_nobodys_failure(house: House, instance: DagsterInstance):
    house.table("a")
    job = house.register("a")
    api.pause_job("shop.a", job.key.name, log=house.log)
    report = sync(house.settings, instance)
    assert (report.iterations, report.behind) == (0, ())
    assert house.job("a").watermark.is_zero


def test_what_a_dead_daemon_left_in_the_queue_is_taken_over(
    house: House, instance: DagsterInstance
):
    house.table()
    house.register()
    runner = Runner(house.log)
    (iteration,) = runner.tick([], now()).plan.iterations
    run = run_of(instance, iteration, runner.jobs)
    house.set("items", "look", state=JobState.PENDING, status=_held(house.job(), run.run_id))
    assert sync(house.settings, instance).behind == ()
    assert house.job().watermark.version == 0
    assert house.job().attempt == 0
    left = instance.get_run_by_id(run.run_id)
    assert left is not None
    assert left.status is DagsterRunStatus.CANCELED


def test_the_command_names_who_is_behind_and_exits_with_1(
    house: House,
    at_home: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    house.table()
    house.register("items", "bad")
    house.register("items", "good")
    monkeypatch.setenv("ISCP_FAULT", "raise@before_apply:bad")
    with pytest.raises(SystemExit) as exited:
        main(["sync", "--attempts", "1"])
    assert exited.value.code == 1
    said = capsys.readouterr()
    assert "sys/shop/items/bad: attempt 1 failed" in said.err
    assert "good" not in said.err.splitlines()[-1]
    monkeypatch.delenv("ISCP_FAULT")
    with pytest.raises(SystemExit) as exited:
        main(["sync", "--json"])
    assert exited.value.code == 0
    assert json.loads(capsys.readouterr().out)["behind"] == []


def test_an_interrupted_job_leaves_a_shared_run_and_counts_no_failure(
    house: House, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    house.table()
    house.register("items", "a")
    house.register("items", "b")
    sync(house.settings, instance)
    house.commit()
    monkeypatch.setenv("ISCP_FAULT", "hang@before_apply:a")
    run = threading.Thread(target=run_window, args=(house, instance, ("a", "b"), 0, 1))
    run.start()
    until(lambda: house.job("items", "a").state is JobState.RUNNING, "a is running")
    patch = {"priority": 3}
    api.update_job_spec("shop.items", "a", patch, interrupt=True, log=house.log)
    run.join(WAIT_SECONDS)
    assert not run.is_alive()
    a, b = house.job("items", "a"), house.job("items", "b")
    assert (a.state, a.attempt, a.watermark.version) == (JobState.CANCELED, 0, 0)
    assert a.spec.priority == 3
    assert (b.state, b.watermark.version) == (JobState.COMPLETED, 1)
    assert len(materializations(instance, b)) == 2


def test_a_job_dropped_while_it_runs_leaves_the_others_and_its_heir_starts_anew(
    house: House, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    house.table()
    old = house.register("items", "a")
    house.register("items", "b")
    sync(house.settings, instance)
    house.commit()
    monkeypatch.setenv("ISCP_FAULT", "hang@before_apply:a")
    run = threading.Thread(target=run_window, args=(house, instance, ("a", "b"), 0, 1))
    run.start()
    until(lambda: house.job("items", "a").state is JobState.RUNNING, "a is running")
    api.unregister_job("shop.items", "a", log=house.log)
    heir = house.register("items", "a")
    run.join(WAIT_SECONDS)
    assert not run.is_alive()
    assert heir.job_id > old.job_id
    assert house.job("items", "a") == heir
    assert house.job("items", "b").watermark.version == 1
    monkeypatch.delenv("ISCP_FAULT")
    assert sync(house.settings, instance).behind == ()
    assert rows(house, house.job("items", "a")) == 4


def test_a_crash_after_the_commit_loses_and_repeats_nothing(
    house: House, at_home: DagsterInstance, processes: Processes
):
    house.table()
    house.register()
    assert sync(house.settings, at_home).iterations == 1
    house.commit()
    crash = processes("kill@after_commit:look")
    assert crash.wait(WAIT_SECONDS) == -signal.SIGKILL
    (dead,) = at_home.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTED]))
    assert (house.job().state, house.job().watermark.version) == (JobState.RUNNING, 0)
    house.commit()
    report = sync(house.settings, at_home)
    assert report.behind == ()
    job = house.job()
    assert (job.state, job.attempt, job.watermark.version) == (JobState.COMPLETED, 0, 2)
    assert rows(house, job) == 5
    ended = at_home.get_run_by_id(dead.run_id)
    assert ended is not None
    assert ended.status is DagsterRunStatus.FAILURE
    assert house.log.iterations.open() == []


def test_an_interrupt_ends_a_sync_with_its_spark_and_counts_no_failure(
    house: House, at_home: DagsterInstance, processes: Processes
):
    house.table()
    house.register()
    process = processes("hang@before_apply:look")
    until(lambda: house.job().state is JobState.RUNNING, "the job is running")
    java = until(lambda: spark_of(process.pid), "Spark is there")
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_SECONDS) == 130
    until(lambda: not any(map(is_running, java)), "Spark is gone")
    job = house.job()
    assert (job.state, job.attempt, job.watermark.is_zero) == (JobState.CANCELED, 0, True)
    (run,) = at_home.get_runs()
    assert run.status is DagsterRunStatus.CANCELED


def run_window(
    house: House, instance: DagsterInstance, names: tuple[str, ...], start: int, end: int
) -> bool:
    """Materialize a window of the items by hand, as from the UI."""
    key = house.window(start, end).partition_key
    table = house.job("items", names[0]).key.table_key
    instance.add_dynamic_partitions(partitions_name(table), [key])
    job = house.definitions().resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(
        instance=instance,
        asset_selection=[AssetKey(table.job(name).asset_path) for name in names],
        partition_key=key,
        raise_on_error=False,
    )
    return result.success


def _held(job: Job, run_id: str):

    return replace(job.status, run_id=run_id)

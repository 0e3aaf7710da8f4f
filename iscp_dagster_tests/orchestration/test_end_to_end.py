"""The real daemon and code server: a commit from outside, a killed run, a canceled one, a drop."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from iscp_dagster import api
from iscp_dagster.cli.main import main
from iscp_dagster.orchestration.instance import open_instance
from iscp_dagster.rules.model import JobState
from iscp_dagster_tests.orchestration.house import House
from iscp_dagster_tests.orchestration.processes import end_all_of, is_running, spark_of

pytestmark = [pytest.mark.dagster, pytest.mark.spark, pytest.mark.timeout(600)]

WAIT_SECONDS = 150.0
POLL_SECONDS = 0.25

Found = TypeVar("Found")


class Daemon:
    """A daemon and a code server, in a home of their own."""

    def __init__(self, house: House, instance: DagsterInstance, folder: Path) -> None:
        self.house, self.instance = house, instance
        self._folder = folder
        self._output = folder / "output.log"
        with socket.create_server(("127.0.0.1", 0)) as found:
            self._port = found.getsockname()[1]
        server = {"host": "127.0.0.1", "port": self._port, "location_name": "iscp"}
        workspace = folder / "workspace.yaml"
        workspace.write_text(json.dumps({"load_from": [{"grpc_server": server}]}))
        self.server: subprocess.Popen[bytes] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self, fault: str) -> None:
        """Start both, the code server with a fault."""
        self.start_server(fault)
        self._daemon = self._start("dagster-daemon", "run", "-w", "workspace.yaml")

    def start_server(self, fault: str = "") -> None:
        """Start the code server, and return once it answers."""
        at = ("-h", "127.0.0.1", "-p", str(self._port))
        self.server = self._start(
            "dagster", "api", "grpc", "-m", "iscp_dagster.definitions", *at, fault=fault
        )
        self.until(self._answers, "the code server answers")

    def stop(self) -> None:
        """End both and whatever they started."""
        processes = [one for one in (self._daemon, self.server) if one is not None]
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        end_all_of(self.house.settings.home)

    def _start(self, program: str, *arguments: str, fault: str = "") -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            return subprocess.Popen(
                [str(Path(sys.executable).with_name(program)), *arguments],
                cwd=self._folder,
                env={**os.environ, "ISCP_FAULT": fault},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self._port)) == 0

    def until(self, condition: Callable[[], Found | None], what: str) -> Found:
        """Wait for a condition; when it never comes, say what the processes said."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            found = condition()
            if found:
                return found
            assert time.monotonic() < deadline, f"never: {what}\n{self.said()}"
            time.sleep(POLL_SECONDS)

    def said(self) -> str:
        """The end of what daemon and server said."""
        return self._output.read_text(errors="replace")[-6000:]

    def runs(self, job: str, *statuses: DagsterRunStatus) -> list[DagsterRun]:
        """The runs for one job alone, newest first."""
        tags = {"iscp/jobs": f'["{job}"]'}
        return list(self.instance.get_runs(RunsFilter(tags=tags, statuses=list(statuses) or None)))

    def hanging(self, job: str, attempt: int) -> tuple[DagsterRun, int]:
        """Wait for a run of an attempt that works in Spark; returns it with its process."""

        def found() -> tuple[DagsterRun, int] | None:
            for run in self.runs(job, DagsterRunStatus.STARTED):
                pid = self._pid(run)
                if run.tags["iscp/attempt"] == str(attempt) and pid and spark_of(pid):
                    return run, pid
            return None

        return self.until(found, f"attempt {attempt} of {job} runs")

    def tried_again_within_a_minute(self, killed: DagsterRun) -> None:
        """Wait until a killed run is reported failed and its job has another run."""
        at = time.monotonic()
        jobs = json.loads(killed.tags["iscp/jobs"])
        self.until(lambda: self.status(killed) is DagsterRunStatus.FAILURE, "it is failed")
        self.until(lambda: self.runs(jobs[0])[0].run_id != killed.run_id, "it is tried again")
        assert time.monotonic() - at < 60
        again = self.runs(jobs[0])[0]
        assert int(again.tags["iscp/attempt"]) == int(killed.tags["iscp/attempt"]) + 1
        assert again.tags["iscp/window"] == killed.tags["iscp/window"]

    def status(self, run: DagsterRun) -> DagsterRunStatus:
        """How a run is doing now."""
        found = self.instance.get_run_by_id(run.run_id)
        assert found is not None
        return found.status

    def _pid(self, run: DagsterRun) -> int | None:
        for entry in self.instance.all_logs(run.run_id):
            said = re.search(r"in process \(pid: (\d+)\)", entry.message or entry.user_message)
            if said:
                return int(said[1])
        return None


@pytest.fixture
def dagster(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A daemon and a code server that the test starts; afterwards nothing of them is left."""
    monkeypatch.setenv("DAGSTER_HOME", str(house.settings.home))
    monkeypatch.setenv("ISCP_SPARK_MASTER", "local[1]")
    with open_instance(house.settings) as instance:
        daemon = Daemon(house, instance, tmp_path)
        try:
            yield daemon
        finally:
            daemon.stop()


def test_the_daemon_follows_commits_and_survives_kills_cancels_and_drops(
    house: House, dagster: Daemon, capsys: pytest.CaptureFixture[str]
):
    house.table("items")
    house.register("items", "look")
    house.table("stuck")
    house.register("stuck", "slow")
    dagster.start("hang@before_apply:slow")
    a_commit_from_outside_reaches_the_index(house, dagster)
    a_killed_run_is_tried_again_as_a_new_attempt(house, dagster)
    a_canceled_run_stops_with_its_spark_and_counts_no_failure(house, dagster)
    a_dropped_jobs_run_ends_at_once(house, dagster, capsys)
    a_run_killed_with_its_code_server_is_tried_again(house, dagster)


def a_commit_from_outside_reaches_the_index(house: House, dagster: Daemon) -> None:
    dagster.until(lambda: house.job().watermark.version == 0, "the first sync")
    version = house.commit()
    dagster.until(lambda: house.job().watermark.version == version, "the commit is indexed")
    job = house.job()
    assert (job.state, job.attempt) == (JobState.COMPLETED, 0)
    key, table = AssetKey(job.key.asset_path), AssetKey(job.key.table_key.asset_path)

    def told_version() -> object:
        (told,) = dagster.instance.fetch_materializations(key, limit=1).records
        assert told.asset_materialization is not None
        return told.asset_materialization.metadata["iscp/source_version"].value

    # The log is written first; Dagster is told right after.
    dagster.until(lambda: told_version() == version, "Dagster is told")
    (seen,) = dagster.instance.fetch_observations(table, limit=1).records
    assert seen.asset_observation is not None
    assert (seen.asset_observation.tags or {})["dagster/data_version"] == str(version)


def a_killed_run_is_tried_again_as_a_new_attempt(house: House, dagster: Daemon) -> None:
    killed, pid = dagster.hanging("slow", attempt=0)
    java = spark_of(pid)
    os.kill(pid, signal.SIGKILL)
    dagster.tried_again_within_a_minute(killed)
    assert house.job("stuck", "slow").attempt == 1
    dagster.until(lambda: not any(map(is_running, java)), "the killed run's Spark is gone")


def a_canceled_run_stops_with_its_spark_and_counts_no_failure(
    house: House, dagster: Daemon
) -> None:
    hanging, pid = dagster.hanging("slow", attempt=1)
    java = spark_of(pid)
    assert dagster.instance.run_coordinator.cancel_run(hanging.run_id)
    dagster.until(
        lambda: dagster.status(hanging) is DagsterRunStatus.CANCELED, "the run is canceled"
    )
    dagster.until(lambda: not any(map(is_running, [pid, *java])), "its processes are gone")
    dagster.until(
        lambda: house.job("stuck", "slow").state is JobState.CANCELED, "the job is canceled"
    )
    job = house.job("stuck", "slow")
    assert (job.attempt, job.watermark.is_zero) == (1, True)


def a_dropped_jobs_run_ends_at_once(
    house: House, dagster: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert api.repair_job("shop.stuck", "slow", log=house.log)
    hanging, pid = dagster.hanging("slow", attempt=0)
    with pytest.raises(SystemExit):
        main(["unregister", "shop.stuck", "slow"])
    assert "1 runs canceled" in capsys.readouterr().out
    ended = (DagsterRunStatus.CANCELED, DagsterRunStatus.FAILURE)
    dagster.until(lambda: dagster.status(hanging) in ended, "the dropped job's run ends")
    dagster.until(lambda: not is_running(pid), "its process is gone")
    assert [str(row.key) for row in api.get_jobs(log=house.log)] == ["sys/shop/items/look"]


def a_run_killed_with_its_code_server_is_tried_again(house: House, dagster: Daemon) -> None:
    house.register("stuck", "slow")
    killed, pid = dagster.hanging("slow", attempt=0)
    assert dagster.server is not None
    dagster.server.kill()
    dagster.server.wait()
    os.kill(pid, signal.SIGKILL)
    dagster.start_server()
    dagster.tried_again_within_a_minute(killed)
    dagster.until(lambda: house.job("stuck", "slow").watermark.version == 0, "it gets there")
    job = house.job("stuck", "slow")
    assert (job.state, job.attempt) == (JobState.COMPLETED, 0)
    assert house.log.iterations.open() == []

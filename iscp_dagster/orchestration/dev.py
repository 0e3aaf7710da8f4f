"""Everything that `iscp dev` starts, all on loopback: a Spark Connect server, and Dagster.

Dagster's own `dagster dev` runs the webserver, the daemon and the code server; runs find Spark
through `SPARK_REMOTE`, which spares each of them the start of a JVM. Whoever ends first ends the
others.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from iscp_dagster.errors import ServiceDied, UsageError
from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.instance import prepare_home
from iscp_dagster.orchestration.webserver import (
    LOCATION,
    Address,
    read_address,
    remove_address,
    write_address,
)
from iscp_dagster.settings import Settings
from iscp_dagster.spark.connect_server import start_connect_server

START_SECONDS = 120.0
STOP_SECONDS = 45.0
OUTPUT = "output"
"""The folder in the home for what services print. Not `logs`: Dagster's telemetry, on or off, sends
whatever it finds in a folder of that name."""

_LAST_LINES = 15
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Service:
    """A child process and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def last_lines(self) -> str:
        """Return the end of its output."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return "\n".join(lines[-_LAST_LINES:])


@dataclass(frozen=True, slots=True)
class Freshness:
    """How long one window took from its last commit until its indexes had it."""

    table: str
    window: str
    jobs: tuple[str, ...]
    seconds: float


def check_start(settings: Settings, port: int) -> None:
    """Refuse, in one line, to start what can't run: before anything is started or written."""
    known = read_address(settings)
    if known is not None and known.answers():
        raise UsageError(f"Dagster runs for this home already, at {known.url}", cure=_cure(known))
    _check_port(port)
    # A home from better days may have all that is to be prepared, and still take nothing new.
    if not os.access(prepare_home(settings), os.W_OK):
        raise UsageError(
            f"ISCP_HOME: {settings.home} can't be written",
            cure="set ISCP_HOME to a folder that can",
        )


@contextmanager
def services(
    settings: Settings, *, port: int, spark: bool, say: Callable[[str], None]
) -> Iterator[list[Service]]:
    """Start everything, wait until it answers, and stop it in the end, in reverse order."""
    check_start(settings, port)
    environment = dict(os.environ)
    with stopping_all() as running:
        if spark and not settings.spark_remote:
            say("starting the Spark Connect server")
            server = start_connect_server(settings)
            running.append(Service("Spark Connect server", server.process, server.log))
            environment["SPARK_REMOTE"] = server.url
        say("starting Dagster")
        running.append(_start_dagster(settings, port, environment))
        url = f"http://127.0.0.1:{port}"
        _wait_for_webserver(url, running)
        write_address(settings, url, [service.process.pid for service in running])
        try:
            yield running
        finally:
            remove_address(settings)


@contextmanager
def stopping_all() -> Iterator[list[Service]]:
    """Stop whatever was added to the list in the end, the last one first."""
    running: list[Service] = []
    try:
        yield running
    finally:
        for service in reversed(running):
            _stop(service)


def watch(running: list[Service]) -> None:
    """Return only by an exception: one of the services has died, or Ctrl-C."""
    while True:
        _check_alive(running)
        time.sleep(_POLL_SECONDS)


def freshness(settings: Settings, windows: int = 10) -> list[Freshness]:
    """Return how fresh the indexes were after the last windows, newest first."""
    with JobLog.open(settings) as log:
        ended = [record for record in log.iterations.list(limit=windows * 3) if record.end_at]
    return [
        Freshness(
            table=str(record.table),
            window=str(record.window),
            jobs=record.job_names,
            seconds=(record.end_at - record.window.end.time).total_seconds(),
        )
        for record in ended
        if record.end_at is not None and not record.window.start.is_zero
    ][:windows]


def _start_dagster(settings: Settings, port: int, environment: dict[str, str]) -> Service:
    log = settings.home / OUTPUT / "dagster.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "dagster", "dev", "--module-name", LOCATION]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A Ctrl-C in the terminal reaches us; the services are stopped in order.
            start_new_session=True,
        )
    return Service("Dagster", process, log)


def _wait_for_webserver(url: str, running: list[Service]) -> None:
    address = Address(url, os.getpid())
    deadline = time.monotonic() + START_SECONDS
    while not address.answers():
        _check_alive(running)
        if time.monotonic() > deadline:
            raise ServiceDied(
                f"Dagster's webserver does not answer at {url} after {START_SECONDS:g} s",
                cure=f"see {running[-1].log}",
            )
        time.sleep(_POLL_SECONDS)


def _check_alive(running: list[Service]) -> None:
    for service in running:
        code = service.process.poll()
        if code is not None:
            died = ServiceDied(f"{service.name} ended with code {code}", cure=f"see {service.log}")
            died.add_note(service.last_lines())
            raise died


def _cure(known: Address) -> str:
    if known.is_owned():
        return f"stop process {known.pid}, or set ISCP_HOME to another folder"
    left = ", ".join(map(str, known.services))
    return f"the `iscp dev` that started it is gone; end what it left: {left}"


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"port {port} is taken: {error.strerror}", cure="choose another with --port"
            ) from error


def _stop(service: Service) -> None:
    """End a service and everything it started; a second Ctrl-C makes it quick."""
    if service.process.poll() is None:
        service.process.send_signal(signal.SIGINT if service.name == "Dagster" else signal.SIGTERM)
        try:
            service.process.wait(STOP_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            service.process.kill()
            service.process.wait()
    # What it left behind in its session: code servers and runs that did not hear the signal.
    try:
        os.killpg(service.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return

"""Plain `dagster dev`, started in a folder and ended with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iscp_dagster_tests.orchestration.webserver import Webserver

WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.2
_STOP_SECONDS = 4.0


@dataclass(frozen=True)
class DagsterDev:
    """A webserver, a daemon and a code server on loopback."""

    process: subprocess.Popen[bytes]
    port: int
    output: Path

    @staticmethod
    @contextmanager
    def start(folder: Path, environ: Mapping[str, str]) -> Iterator[DagsterDev]:
        """Start it in a folder, wait until its sensor has ticked, and end all of it."""
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        program = Path(sys.executable).with_name("dagster")
        output = folder / "dagster-dev.log"
        with output.open("wb") as log:
            process = subprocess.Popen(
                [program, "dev", "--host", "127.0.0.1", "--port", str(port)],
                cwd=folder,
                env=dict(environ),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running = DagsterDev(process, port, output)
        try:
            running.until(running.last_skip_reason, "the sensor ticks")
            yield running
        finally:
            running.stop()

    def last_skip_reason(self) -> str | None:
        """What the sensor's newest tick that started nothing said; None before it."""
        try:
            sensor = Webserver(self.port).sensor()
        except OSError:
            # Nobody answers yet.
            return None
        ticks = sensor.get("sensorState", {}).get("ticks", ())
        return next((tick["skipReason"] for tick in ticks if tick["status"] == "SKIPPED"), None)

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition; when it never comes, tell what Dagster said."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            said = self.output.read_text(errors="replace")[-4000:]
            assert self.process.poll() is None, said
            assert time.monotonic() < deadline, f"never: {what}\n{said}"
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """End it as Ctrl-C does; what takes its time has nothing to lose."""
        self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

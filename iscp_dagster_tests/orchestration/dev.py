"""A running `iscp dev`, and the refusal of one."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from iscp_dagster.cli.main import main
from iscp_dagster_tests.orchestration.house import House
from iscp_dagster_tests.orchestration.webserver import Webserver

WAIT_SECONDS = 150.0
POLL_SECONDS = 0.25
ISCP = Path(sys.executable).with_name("iscp")
TABLE = "sys/shop/items"

Found = TypeVar("Found")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def until(
    condition: Callable[[], Found | None], what: str, more: Callable[[], str] = lambda: ""
) -> Found:
    """Wait for a condition; when it never comes, say more."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never: {what}\n{more()}"
        time.sleep(POLL_SECONDS)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The one line with which `iscp dev` refuses."""
    with pytest.raises(SystemExit) as ended:
        main(["dev", *options])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith("iscp: ")
    assert err.count("\n") == 1
    return err


class Dev:
    """A running `iscp dev`."""

    def __init__(self, house: House, port: int, folder: Path) -> None:
        self.house, self.port = house, port
        self.ui = Webserver(port)
        self._output = folder / "dev.txt"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [ISCP, "dev", "--port", str(port)],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.until(lambda: "Ctrl-C stops everything" in self.said(), "everything answers")

    def said(self) -> str:
        return self._output.read_text()

    def until(self, condition: Callable[[], Found | None], what: str) -> Found:
        """Wait for a condition while it runs; when it never comes, say what the processes said."""

        def met() -> Found | None:
            assert self.process.poll() is None, self.said()
            return condition()

        return until(met, what, self._last_lines)

    def caught_up(self, version: int) -> None:
        """Wait until the index stands at a version and nothing is in flight."""
        self.until(
            lambda: self.house.job().watermark.version == version and not self.in_flight(),
            f"the index reaches version {version}",
        )

    def in_flight(self) -> bool:
        """Whether a run is queued or started."""
        ended = {"SUCCESS", "FAILURE", "CANCELED"}
        return any(run["status"] not in ended for run in self.ui.runs(iscp__table=TABLE))

    def _last_lines(self) -> str:
        logs = sorted((self.house.settings.home / "output").glob("*.log"))
        return self.said() + "".join(log.read_text(errors="replace")[-4000:] for log in logs)

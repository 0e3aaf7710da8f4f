"""`iscp dev`: what it refuses, what it records of itself, and the death of a service."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iscp_dagster.errors import ServiceDied
from iscp_dagster.orchestration.dev import Service, check_start, stopping_all, watch
from iscp_dagster.orchestration.webserver import (
    ask_for_reload,
    read_address,
    remove_address,
    write_address,
)
from iscp_dagster.settings import Settings
from iscp_dagster_tests.orchestration.dev import free_port, refusal, until
from iscp_dagster_tests.orchestration.processes import is_running


@pytest.fixture(autouse=True)
def _own_dagster_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever prepares a home points the process at it: only for the length of a test."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))


def test_a_port_that_is_taken_is_one_line(home: Settings, capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = refusal(capsys, "--port", str(port), "--live")
    assert f"port {port} is taken" in line
    assert "--port" in line
    assert not home.home.exists()


def test_a_home_that_can_not_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ISCP_HOME", str(tmp_path / "file" / "home"))
    line = refusal(capsys, "--port", str(free_port()), "--live")
    assert "can't be written" in line
    assert "set ISCP_HOME" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_was_written_once_and_is_read_only_now_is_one_line(
    home: Settings, capsys: pytest.CaptureFixture[str]
):
    check_start(home, free_port())
    home.home.chmod(0o555)
    try:
        assert "can't be written" in refusal(capsys, "--port", str(free_port()))
    finally:
        home.home.chmod(0o755)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"url": 1}', "\0"])
def test_an_address_that_makes_no_sense_is_none(home: Settings, text: str):
    home.home.mkdir()
    (home.home / "webserver.json").write_text(text)
    assert read_address(home) is None
    assert not ask_for_reload(home)
    check_start(home, free_port())


def test_a_stale_address_stops_nobody_and_costs_no_time(home: Settings):
    assert not ask_for_reload(home)
    home.home.mkdir()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale = {"url": f"http://127.0.0.1:{free_port()}", "pid": ended.pid, "services": []}
    (home.home / "webserver.json").write_text(json.dumps(stale))
    begin = time.monotonic()
    assert not ask_for_reload(home)
    assert time.monotonic() - begin < 0.5
    check_start(home, free_port())


def test_a_webserver_that_hangs_holds_nobody_up(home: Settings):
    home.home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write_address(home, f"http://127.0.0.1:{silent.getsockname()[1]}", [])
        begin = time.monotonic()
        ask_for_reload(home)
        assert time.monotonic() - begin < 1.5
    remove_address(home)
    assert read_address(home) is None


def test_the_death_of_one_service_stops_the_others_and_shows_its_last_lines(tmp_path: Path):
    def service(name: str, script: str) -> Service:
        log = tmp_path / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["sh", "-c", script], stdout=output, stderr=output, start_new_session=True
            )
        return Service(name, process, log)

    long = service("long", "sleep 600 & echo $!; wait")
    until(long.log.read_text, "it has started another")
    short = service("short", "echo one; echo two >&2; exit 3")

    def live() -> None:
        with stopping_all() as running:
            running += [long, short]
            watch(running)

    with pytest.raises(ServiceDied, match=r"^short ended with code 3; see .*short\.log\none\ntwo$"):
        live()
    assert long.process.poll() is not None
    until(lambda: not is_running(int(long.log.read_text())), "what it has started is gone")

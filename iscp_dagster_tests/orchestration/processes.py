"""The processes that a test has started, as Linux tells of them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


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


def started_with(home: Path) -> list[int]:
    """What was started with a home in its environment, but for this process."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        pid = int(environ.parent.name)
        try:
            ours = f"ISCP_HOME={home}".encode() in environ.read_bytes().split(b"\0")
        except OSError:
            continue
        if ours and pid != os.getpid():
            found.append(pid)
    return found


def end_all_of(home: Path) -> None:
    """End what was started with a home in its environment, but for this process."""
    for pid in started_with(home):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _read_stat(stat: Path) -> tuple[str, int]:
    """Return program and parent of a process; nothing of one that is gone or a zombie."""
    try:
        before, _, after = stat.read_text().rpartition(")")
    except OSError:
        return "", 0
    state, parent = after.split()[:2]
    return ("", 0) if state == "Z" else (before.partition("(")[2], int(parent))

"""Named points in an iteration at which a test may let it die, hang or fail.

`ISCP_FAULT=<action>@<point>[:<job>]` arms one point in this process, or several, separated by
commas: `kill` ends the process as a power cut would, `hang` waits for ever, `pause` lets the
first to come wait until it is no longer armed, `raise` raises a temporary error, `fail` a permanent
one. Unset, a point costs one look into a dict.
"""

from __future__ import annotations

import os
import signal
import threading

from iscp_dagster.errors import PermanentError, TemporaryError

VARIABLE = "ISCP_FAULT"
_POLL_SECONDS = 0.02

paused: set[str] = set()
"""The points of this process at which somebody waits to go on."""


def reach(point: str, job: str = "") -> None:
    """Pass a fault point; does nothing unless it is armed."""
    for armed in filter(None, os.environ.get(VARIABLE, "").split(",")):
        action, _, where = armed.partition("@")
        if where in (point, f"{point}:{job}"):
            _act(action, where, armed)


def _act(action: str, where: str, armed: str) -> None:
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            threading.Event().wait()
        case "pause":
            if where in paused:
                return
            paused.add(where)
            while armed in os.environ.get(VARIABLE, "").split(","):
                threading.Event().wait(_POLL_SECONDS)
            paused.discard(where)
        case "raise":
            raise TemporaryError(f"fault at {where}")
        case "fail":
            raise PermanentError(f"fault at {where}")

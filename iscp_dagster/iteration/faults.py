"""Named points in an iteration at which a test may let it die, hang or fail.

`ISCP_FAULT=<action>@<point>[:<job>]` arms one point in this process: `kill` ends the process as a
power cut would, `hang` waits for ever, `raise` raises a temporary error, `fail` a permanent one.
Unset, a point costs one look into a dict.
"""

from __future__ import annotations

import os
import signal
import threading

from iscp_dagster.errors import PermanentError, TemporaryError

VARIABLE = "ISCP_FAULT"


def reach(point: str, job: str = "") -> None:
    """Pass a fault point; does nothing unless it is armed."""
    armed = os.environ.get(VARIABLE)
    if not armed:
        return
    action, _, where = armed.partition("@")
    if where not in (point, f"{point}:{job}"):
        return
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            threading.Event().wait()
        case "raise":
            raise TemporaryError(f"fault at {where}")
        case "fail":
            raise PermanentError(f"fault at {where}")

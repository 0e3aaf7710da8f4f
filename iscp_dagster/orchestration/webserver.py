"""Where `iscp dev` runs Dagster's webserver, and how to ask it to load the definitions anew.

The *address* is a small file in the home, written once the webserver answers and removed at the
end. It may be *stale*: whoever wrote it was killed. Nothing here needs Dagster to be imported.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from iscp_dagster.settings import Settings

LOCATION = "iscp_dagster.definitions"
"""The code location's name, as Dagster derives it from the module."""

_NAME = "webserver.json"
_ANSWER_SECONDS = 2.0
_ASK_SECONDS = 0.5
_RELOAD = """
mutation ($location: String!) {
  reloadRepositoryLocation(repositoryLocationName: $location) { __typename }
}
"""


@dataclass(frozen=True, slots=True)
class Address:
    """A webserver that somebody has started for a home."""

    url: str
    pid: int
    """The `iscp dev` that started it."""
    services: tuple[int, ...] = ()
    """The processes that it has started."""

    def answers(self) -> bool:
        """Whether a Dagster webserver answers there."""
        try:
            with _open(f"{self.url}/server_info", _ANSWER_SECONDS) as page:
                return "dagster_webserver_version" in json.load(page)
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def is_owned(self) -> bool:
        """Whether the process that started it is still there."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            # Somebody else's, and there.
            return True
        return True


def read_address(settings: Settings) -> Address | None:
    """Return the address in the home; None if there is none, or it can't be read."""
    try:
        values = json.loads(_path(settings).read_text(encoding="utf-8"))
        return Address(str(values["url"]), int(values["pid"]), tuple(map(int, values["services"])))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_address(settings: Settings, url: str, services: Sequence[int]) -> None:
    """Record a webserver of this process."""
    path = _path(settings)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    address = Address(url, os.getpid(), tuple(services))
    temporary.write_text(json.dumps(asdict(address)), encoding="utf-8")
    temporary.replace(path)


def remove_address(settings: Settings) -> None:
    """Forget the webserver, if it is this process's."""
    found = read_address(settings)
    if found is not None and found.pid == os.getpid():
        _path(settings).unlink(missing_ok=True)


def ask_for_reload(settings: Settings) -> bool:
    """Ask the home's webserver to load the definitions anew, so that new jobs become assets.

    Never fails, and never waits for the load itself: the definitions are there some seconds later.

    Returns:
        Whether a webserver took the request.
    """
    address = read_address(settings)
    if address is None:
        return False
    body = json.dumps({"query": _RELOAD, "variables": {"location": LOCATION}}).encode()
    request = urllib.request.Request(
        f"{address.url}/graphql", body, {"Content-Type": "application/json"}
    )
    try:
        with _open(request, _ASK_SECONDS) as answer:
            return answer.status == 200
    except TimeoutError:
        # It took the request and is at work.
        return True
    except (urllib.error.URLError, OSError):
        return False


def _open(request: str | urllib.request.Request, seconds: float) -> Any:
    # Loopback is never asked through a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=seconds)


def _path(settings: Settings) -> Path:
    return settings.home / _NAME

"""Reading the commits of a Delta log, one file at a time, without replaying it.

A *commit* is the file `<version, 20 digits>.json`: one JSON action a line. Everything else in the
folder (checkpoints, `.crc`, `<x>.<y>.compacted.json`, staged `<v>.<uuid>.json`) is not a commit and
is passed over. The *mark* of a commit is a value that differs once another file has its name.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from iscp_dagster.errors import TableUnreadable
from iscp_dagster.rules.model import Commit
from iscp_dagster.sources.storage import bucket_and_path, local_path, open_store, provider_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

LOG_FOLDER = "_delta_log"

_COMMIT_NAME = re.compile(r"\d{20}\.json", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Inside a JSON string every quote is escaped, and partition values and tags are strings: these
# patterns can only meet the action's own fields. That spares parsing the statistics of each file.
_FILE_ACTION = re.compile(rb'\s*\{\s*"(add|remove|cdc)"\s*:\s*\{')
_DATA_CHANGE = re.compile(rb'"dataChange"\s*:\s*(true|false)')
_SIZE = re.compile(rb'"size"\s*:\s*(\d+)')
# How many commits of one table are asked for at once on an object store.
_READ_AHEAD = 32


@dataclass(frozen=True, slots=True)
class CommitRead:
    """A commit, and the Delta id it set if it touched the table's metadata."""

    commit: Commit
    delta_id: str | None


class DeltaLog(Protocol):
    """The log of one table; what can't be read is a `TableUnreadable` or an `OSError`."""

    remote: bool
    """Whether a question costs a request."""

    def mark(self, version: int) -> object | None:
        """Return the mark of a commit; None when it is not there."""
        ...

    def has(self, version: int) -> bool:
        """Whether the commit is there."""
        ...

    def versions(self, start: int) -> list[int]:
        """Return the commits from `start` on, ascending; none when there is no log."""
        ...

    def hint(self) -> int:
        """Return a version near the newest one, as `_last_checkpoint` says; 0 when it doesn't."""
        ...

    def read(self, start: int, limit: int, deadline: float | None) -> list[CommitRead]:
        """Read from `start` on, until a commit is missing, `limit` is reached or time is up."""
        ...


def open_log(uri: str, stores: dict[str, ObjectStore]) -> DeltaLog:
    """Open the log of the table at `uri`; `stores` keeps one client per bucket."""
    if provider_of(uri) == "local":
        return LocalLog(local_path(uri))
    bucket, path = bucket_and_path(uri)
    store = stores.get(bucket)
    if store is None:
        from obstore.exceptions import BaseError

        try:
            store = stores.setdefault(bucket, open_store(bucket))
        except (BaseError, ValueError) as error:
            raise TableUnreadable(one_line(error)) from error
    return ObjectLog(store, path)


class LocalLog:
    """A log on local disk: a question is a system call."""

    remote = False
    __slots__ = ("_prefix",)

    def __init__(self, table: Path) -> None:
        self._prefix = f"{table / LOG_FOLDER}/"

    def mark(self, version: int) -> object | None:
        """Return inode and time of the file."""
        try:
            # A plain string and a plain call: this runs for every table at every tick.
            found = os.stat(f"{self._prefix}{version:020d}.json")  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_ino, found.st_mtime_ns

    def has(self, version: int) -> bool:
        """Whether the commit is there; what can't be asked for is not."""
        return os.access(f"{self._prefix}{version:020d}.json", os.F_OK)

    def versions(self, start: int) -> list[int]:
        """List the folder."""
        try:
            with os.scandir(self._prefix) as entries:
                found = [int(e.name[:20]) for e in entries if _COMMIT_NAME.fullmatch(e.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(version for version in found if version >= start)

    def hint(self) -> int:
        """Listing a local folder costs the same from anywhere."""
        return 0

    def read(self, start: int, limit: int, deadline: float | None) -> list[CommitRead]:
        """Read one file after the other."""
        found: list[CommitRead] = []
        for version in range(start, start + limit):
            if deadline is not None and time.monotonic() >= deadline:
                break
            try:
                with Path(f"{self._prefix}{version:020d}.json").open("rb") as file:
                    payload, stat = file.read(), os.fstat(file.fileno())
            except FileNotFoundError:
                break
            modified = datetime.fromtimestamp(stat.st_mtime, UTC)
            found.append(parse_commit(version, payload, modified))
        return found


class ObjectLog:
    """A log in an object store: a question is a request."""

    remote = True
    __slots__ = ("_folder", "_store")

    def __init__(self, store: ObjectStore, table: str) -> None:
        self._store = store
        self._folder = f"{table}/{LOG_FOLDER}" if table else LOG_FOLDER

    def mark(self, version: int) -> object | None:
        """Return the object's tag and time."""
        import obstore
        from obstore.exceptions import BaseError, NotFoundError

        try:
            meta = obstore.head(self._store, self._name(version))
        except (NotFoundError, FileNotFoundError):
            return None
        except BaseError as error:
            raise TableUnreadable(one_line(error)) from error
        return meta["e_tag"], meta["last_modified"]

    def has(self, version: int) -> bool:
        """Ask for the object's head."""
        return self.mark(version) is not None

    def versions(self, start: int) -> list[int]:
        """List with an offset: only what comes after it is sent."""
        import obstore
        from obstore.exceptions import BaseError

        offset = f"{self._folder}/{start:020d}"
        found: list[int] = []
        try:
            for chunk in obstore.list(self._store, self._folder, offset=offset):
                names = (meta["path"].removeprefix(f"{self._folder}/") for meta in chunk)
                found += [int(name[:20]) for name in names if _COMMIT_NAME.fullmatch(name)]
        except BaseError as error:
            raise TableUnreadable(one_line(error)) from error
        return sorted(version for version in found if version >= start)

    def hint(self) -> int:
        """Read `_last_checkpoint`; a corrupt one is as good as none."""
        import obstore
        from obstore.exceptions import BaseError, NotFoundError

        try:
            text = obstore.get(self._store, f"{self._folder}/_last_checkpoint").bytes()
            version = json.loads(bytes(text))["version"]
        except (NotFoundError, FileNotFoundError, ValueError, KeyError, TypeError):
            return 0
        except BaseError as error:
            raise TableUnreadable(one_line(error)) from error
        return version if type(version) is int and version > 0 else 0

    def read(self, start: int, limit: int, deadline: float | None) -> list[CommitRead]:
        """Read several at once, more of them the more there turn out to be."""
        found: list[CommitRead] = []
        ahead = 1
        while len(found) < limit and (deadline is None or time.monotonic() < deadline):
            first = start + len(found)
            wanted = range(first, first + min(ahead, limit - len(found)))
            there = self._read_all(wanted)
            found += there
            if len(there) < len(wanted):
                break
            ahead = min(ahead * 4, _READ_AHEAD)
        return found

    def _read_all(self, versions: Sequence[int]) -> list[CommitRead]:
        """Read these, up to the first that is missing."""
        if len(versions) == 1:
            read = [self._read_one(versions[0])]
        else:
            with ThreadPoolExecutor(len(versions), "iscp-commits") as pool:
                read = list(pool.map(self._read_one, versions))
        return [one for one in takewhile(lambda one: one is not None, read) if one]

    def _read_one(self, version: int) -> CommitRead | None:
        import obstore
        from obstore.exceptions import BaseError, NotFoundError

        try:
            found = obstore.get(self._store, self._name(version))
            payload = bytes(found.bytes())
        except (NotFoundError, FileNotFoundError):
            return None
        except BaseError as error:
            raise TableUnreadable(one_line(error)) from error
        return parse_commit(version, payload, found.meta["last_modified"])

    def _name(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.json"


def parse_commit(version: int, payload: bytes, modified: datetime) -> CommitRead:
    """Read the actions of one commit.

    A commit changes data when it adds or removes a file with `dataChange`, or writes change data.
    Its bytes are those of such files: what a reader of the window may have to read.

    Args:
        version: the commit's version.
        payload: the file.
        modified: the file's time, used when the commit doesn't tell its own.
    """
    lines = [line for line in payload.split(b"\n") if line.strip()]
    if not lines:
        raise TableUnreadable(f"commit {version} is empty")
    data_change, size, delta_id, times = False, 0, None, {}
    for number, line in enumerate(lines, start=1):
        action = _FILE_ACTION.match(line)
        changes = _DATA_CHANGE.search(line) if action else None
        if action and changes:
            if number == len(lines):
                # A torn write is cut at its end.
                _parse_line(version, number, line)
            if action[1] == b"cdc" or changes[1] == b"true":
                found = _SIZE.search(line)
                data_change, size = True, size + (int(found[1]) if found else 0)
            continue
        for name, body in _parse_line(version, number, line).items():
            if name == "cdc" or (name in ("add", "remove") and body.get("dataChange", True)):
                data_change, size = True, size + _whole_number(body.get("size"), default=0)
            elif name == "metaData":
                delta_id = str(body.get("id") or "") or delta_id
            elif name == "commitInfo":
                times = body
    committed = _time(times.get("inCommitTimestamp")) or _time(times.get("timestamp"))
    return CommitRead(Commit(version, committed or modified, data_change, size), delta_id)


def _parse_line(version: int, number: int, line: bytes) -> dict[str, dict[str, Any]]:
    try:
        actions = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TableUnreadable(f"commit {version}, line {number} is not JSON: {error}") from error
    if isinstance(actions, dict):
        # Some writers spell out the actions that a line does not hold.
        actions = {name: body for name, body in actions.items() if body is not None}
        if all(isinstance(body, dict) for body in actions.values()):
            return actions
    raise TableUnreadable(f"commit {version}, line {number} is not an action")


def _whole_number(value: object, default: int) -> int:
    return value if type(value) is int else default


def _time(milliseconds: object) -> datetime | None:
    value = _whole_number(milliseconds, default=0)
    try:
        return _EPOCH + timedelta(milliseconds=value) if value > 0 else None
    except OverflowError:
        return None


def one_line(error: BaseException) -> str:
    """Return an error's message on one line, without colours, dumps or query strings.

    The query of a url may be a signature, which is a secret.
    """
    text = str(error).partition("Debug source")[0] or type(error).__name__
    text = re.sub(r"\x1b\[[0-9;]*m|↳", "", text)
    return " ".join(re.sub(r"\?\S+", "?…", text).split())[:300]

"""The files of a Delta index at one version, from its log: what Spark calls a snapshot.

delta-rs tells the files but not their deletion vectors, and a commit that changes a vector has to
name the old one. So the log is replayed here: the checkpoint that `_last_checkpoint` names, and the
commits since. Only what our own indexes have is known; anything else is `NotKnown`, and left to
Spark.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from iscp_dagster.sources.delta_log import LOG_FOLDER
from iscp_dagster.sources.storage import local_path, open_store, provider_of
from iscp_dagster.stores.deletion_vectors import Descriptor, identity

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from pyarrow.parquet import ParquetFile


_KEPT = ("path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags")
"""What a file's action has in a commit; a checkpoint may tell the same in other forms as well."""


class NotKnown(Exception):
    """A Delta table has something that only Spark knows how to keep."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file that is part of a version."""

    add: Mapping[str, Any]
    """The action that put it there."""
    stats: Mapping[str, Any]

    @staticmethod
    def of(add: Mapping[str, Any]) -> LiveFile:
        """Read an action; files elsewhere, in partitions or without a row count are not known."""
        path = str(add["path"])
        stats = json.loads(add.get("stats") or "{}")
        if urlsplit(path).scheme or path.startswith("/") or add.get("partitionValues"):
            raise NotKnown(f"file {path}")
        if "numRecords" not in stats:
            raise NotKnown(f"file {path} without a row count")
        return LiveFile(add, stats)

    @property
    def path(self) -> str:
        """Where it is within the table."""
        return unquote(self.add["path"])

    @property
    def rows(self) -> int:
        """Rows in the file, deleted ones among them."""
        return int(self.stats["numRecords"])

    @property
    def live_rows(self) -> int:
        """Rows in the file that are not deleted."""
        return self.rows - (int(self.vector["cardinality"]) if self.vector else 0)

    @property
    def vector(self) -> Descriptor | None:
        """Which of its rows are deleted."""
        return self.add.get("deletionVector")


class DeltaFiles:
    """A Delta table as a folder of files."""

    def __init__(self, uri: str) -> None:
        from obstore.store import LocalStore

        self._local = local_path(uri) if provider_of(uri) == "local" else None
        self._store: ObjectStore = LocalStore(self._local) if self._local else open_store(uri)

    def live(self, version: int) -> list[LiveFile]:
        """Return the data files of a version.

        Raises:
            NotKnown: The log is not one that our own indexes have.
        """
        found: dict[tuple[str, str | None], Mapping[str, Any]] = {}
        checkpoint = self._checkpoint(version)
        if checkpoint is not None:
            for add in self._checkpointed(checkpoint):
                found[_key(add)] = add
        for commit in range(0 if checkpoint is None else checkpoint + 1, version + 1):
            for action in self._actions(commit):
                if (removed := action.get("remove")) is not None:
                    found.pop(_key(removed), None)
                elif (added := action.get("add")) is not None:
                    found[_key(added)] = added
        return [LiveFile.of(add) for add in found.values()]

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Read a part of a file."""
        import obstore
        from obstore.exceptions import BaseError

        try:
            return bytes(obstore.get_range(self._store, path, start=offset, length=length))
        except (BaseError, OSError) as error:
            raise NotKnown(f"{path} can't be read") from error

    def open_parquet(self, path: str) -> ParquetFile:
        """Open a data file; timestamps of Spark's old type come as microseconds."""
        from pyarrow.parquet import ParquetFile

        options: Any = {"coerce_int96_timestamp_unit": "us"}
        if self._local is not None:
            return ParquetFile(self._local / path, **options)
        return ParquetFile(_RemoteFile(self._store, path), pre_buffer=True, **options)

    def write(self, path: str, content: bytes) -> None:
        """Write a new file."""
        import obstore

        obstore.put(self._store, path, content)

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files that nobody needs; what can't be removed now is for VACUUM."""
        import obstore
        from obstore.exceptions import BaseError

        for path in paths:
            with suppress(BaseError, OSError):
                obstore.delete(self._store, path)

    def commit(self, version: int, actions: Iterable[Mapping[str, Any]]) -> bool:
        """Write a commit, unless the version is there already; returns whether it was written."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        lines = (json.dumps(action, separators=(",", ":")) for action in actions)
        path, content = _commit_path(version), "\n".join(lines).encode()
        try:
            obstore.put(self._store, path, content, mode="create")
        except (AlreadyExistsError, FileExistsError):
            # A request whose answer was lost is sent again, and then finds its own work.
            return self._get(path) == content
        return True

    def _checkpoint(self, version: int) -> int | None:
        """The checkpoint to start from; none before the first."""
        text = self._get(f"{LOG_FOLDER}/_last_checkpoint")
        if text is None:
            return None
        try:
            hint = json.loads(text)
            found = int(hint["version"])
        except (ValueError, KeyError, TypeError) as error:
            raise NotKnown("_last_checkpoint") from error
        if hint.get("parts") or hint.get("v2Checkpoint") or found > version:
            raise NotKnown(f"checkpoint {found}")
        return found

    def _checkpointed(self, version: int) -> Iterator[Mapping[str, Any]]:
        import pyarrow as pa

        try:
            with self.open_parquet(f"{LOG_FOLDER}/{version:020d}.checkpoint.parquet") as file:
                table = file.read(columns=["add"])
        except (OSError, pa.ArrowException) as error:
            raise NotKnown(f"checkpoint {version}") from error
        for add in table.column("add").to_pylist():
            if add is not None:
                told = {name: _plain(name, value) for name, value in _told(add)}
                yield {name: told[name] for name in (*_KEPT, "deletionVector") if name in told}

    def _actions(self, version: int) -> Iterator[Mapping[str, Any]]:
        text = self._get(_commit_path(version))
        if text is None:
            raise NotKnown(f"commit {version} is not there")
        return (json.loads(line) for line in text.splitlines() if line.strip())

    def _get(self, path: str) -> bytes | None:
        import obstore
        from obstore.exceptions import NotFoundError

        try:
            return bytes(obstore.get(self._store, path).bytes())
        except (NotFoundError, FileNotFoundError):
            return None


class _RemoteFile(io.RawIOBase):
    """A file in an object store, as Arrow wants it: read from anywhere, a request each time."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        import obstore

        super().__init__()
        self._store, self._path = store, path
        self._size = int(obstore.head(store, path)["size"])
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        import obstore

        end = self._size if size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        found = bytes(obstore.get_range(self._store, self._path, start=self._at, end=end))
        self._at = end
        return found


def _commit_path(version: int) -> str:
    return f"{LOG_FOLDER}/{version:020d}.json"


def _key(action: Mapping[str, Any]) -> tuple[str, str | None]:
    return action["path"], identity(action.get("deletionVector"))


def _told(action: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in action.items() if value is not None)


def _plain(name: str, value: Any) -> Any:
    """Parquet's maps come as lists of pairs, and its records with every field there can be."""
    if name in ("partitionValues", "tags"):
        return dict(value)
    return dict(_told(value)) if name == "deletionVector" else value

"""A commit to a Delta index in the making: its files first, then what makes them count."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from iscp_dagster.errors import IndexContended
from iscp_dagster.stores.deletion_vectors import file_name, write_vectors
from iscp_dagster.stores.delta_columns import Column, parquet_of, stats_of
from iscp_dagster.stores.delta_files import DeltaFiles, LiveFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyroaring import BitMap64

_BOUNDS = re.compile(r'"tightBounds"\s*:\s*(true|false)')


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose commit it is, and what it says about itself."""

    app_id: str
    version: int
    """The transaction's, not the table's."""
    mark: str


class Draft:
    """What a commit adds and removes; files are written as they are added."""

    def __init__(
        self, files: DeltaFiles, columns: Sequence[Column], bounded: Sequence[str]
    ) -> None:
        """Begin a commit.

        Args:
            files: Where to.
            columns: The table's.
            bounded: Those whose least and greatest value the log tells.
        """
        self._files, self._columns, self._bounded = files, columns, bounded
        self._now = int(time.time() * 1000)
        self._id = uuid4()
        self._actions: list[dict[str, Any]] = []
        self._written: list[str] = []
        self._rows = 0

    def mark(self, gone: Sequence[tuple[LiveFile, BitMap64]]) -> None:
        """Have rows of files deleted: all of a file's deleted rows, those of before among them."""
        marked = [(file, rows) for file, rows in gone if len(rows) < file.rows]
        for file, _ in gone:
            self.remove(file)
        if not marked:
            return
        content, vectors = write_vectors(self._id, [rows for _, rows in marked])
        self._put(file_name(self._id), content)
        self._actions += [
            {"add": _with_vector(file, vector)}
            for (file, _), vector in zip(marked, vectors, strict=True)
        ]

    def remove(self, file: LiveFile) -> None:
        """Take a file out."""
        self._actions.append({"remove": _removal(file, self._now)})

    def append(self, rows: pa.Table) -> None:
        """Add a file with these rows; no rows make no file."""
        if not rows.num_rows:
            return
        path = f"part-{len(self._written):05d}-{self._id}-c000.snappy.parquet"
        content = parquet_of(rows, self._columns)
        self._put(path, content)
        stats = stats_of(rows, self._columns, self._bounded)
        self._actions.append({"add": _addition(path, len(content), self._now, stats)})
        self._rows += rows.num_rows

    def commit(self, read_version: int, identity: Identity, deleted: int) -> None:
        """Make it the version right after `read_version`.

        Raises:
            IndexContended: Another writer was faster; what was written is removed again.
        """
        info = {
            "timestamp": self._now,
            "operation": "WRITE",
            "operationParameters": {"mode": "Overwrite"},
            "readVersion": read_version,
            "isolationLevel": "Serializable",
            "isBlindAppend": False,
            "operationMetrics": {
                "numOutputRows": str(self._rows),
                "numDeletedRows": str(deleted),
            },
            "userMetadata": identity.mark,
            "engineInfo": "iscp_dagster",
            "txnId": str(self._id),
        }
        txn = {"appId": identity.app_id, "version": identity.version, "lastUpdated": self._now}
        actions = [{"commitInfo": info}, {"txn": txn}, *self._actions]
        if not self._files.commit(read_version + 1, actions):
            self.discard()
            raise IndexContended("another writer was faster")

    def discard(self) -> None:
        """Remove what was written: it is not to be committed."""
        self._files.delete(self._written)

    def _put(self, path: str, content: bytes) -> None:
        self._written.append(path)
        self._files.write(path, content)


def _with_vector(file: LiveFile, vector: Mapping[str, Any]) -> dict[str, Any]:
    # As text: a number in it may have more digits than a float. Within a string every quote is
    # escaped, so that the pattern can only meet the field itself.
    stats, found = _BOUNDS.subn('"tightBounds":false', file.add["stats"])
    if not found:
        stats = stats.rstrip().removesuffix("}") + ',"tightBounds":false}'
    return {**file.add, "dataChange": True, "stats": stats, "deletionVector": vector}


def _removal(file: LiveFile, now: int) -> dict[str, Any]:
    removal = {
        "path": file.add["path"],
        "deletionTimestamp": now,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.add["size"],
    }
    return removal if file.vector is None else {**removal, "deletionVector": file.vector}


def _addition(path: str, size: int, now: int, stats: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "path": path,
        "partitionValues": {},
        "size": size,
        "modificationTime": now,
        "dataChange": True,
        "stats": json.dumps(stats, separators=(",", ":")),
    }

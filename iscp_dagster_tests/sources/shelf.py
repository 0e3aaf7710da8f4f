"""A table that loads go to, and the files that they come from."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp_dagster import api
from iscp_dagster.errors import UsageError
from iscp_dagster.joblog import JobLog
from iscp_dagster.settings import Settings
from iscp_dagster.sources.load import LoadReport, load_files

NAME = "shop.docs"
SIMPLE = pa.schema([("id", pa.int64()), ("body", pa.string())])
FORMATS = ["parquet", "csv", "json"]

Row = Mapping[str, Any]
T = TypeVar("T")


def doc(key: int, body: str | None) -> Row:
    return {"id": key, "body": body}


def spark_test(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that loads through the shared session."""
    return pytest.mark.spark(pytest.mark.usefixtures("spark")(test))


@dataclass
class Shelf:
    """A recorded table that loads go to, and the folder that files come from."""

    folder: Path
    settings: Settings

    @property
    def uri(self) -> str:
        return str(self.folder / "table")

    @property
    def version(self) -> int:
        return DeltaTable(self.uri).version()

    def create(
        self,
        rows: Sequence[Row] = (),
        schema: pa.Schema = SIMPLE,
        pk: Sequence[str] = ("id",),
        **options: Any,
    ) -> Shelf:
        """Make the table with these rows in it, and record it."""
        write_deltalake(
            self.uri,
            pa.Table.from_pylist(list(map(dict, rows)), schema=schema),
            configuration={"delta.enableChangeDataFeed": "true"},
            **options,
        )
        self.record(pk)
        return self

    def record(self, pk: Sequence[str] = ("id",)) -> None:
        with JobLog.open(self.settings) as log:
            api.add_table(NAME, uri=self.uri, pk=pk, log=log)

    def rows(self) -> list[dict[str, Any]]:
        return sorted(DeltaTable(self.uri).to_pyarrow_table().to_pylist(), key=repr)

    def bodies(self) -> dict[int, str | None]:
        """Key to text; fails where a key is there twice."""
        rows = self.rows()
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: row["body"] for row in rows}

    def file(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def write(self, file_format: str, rows: Sequence[Row], name: str = "batch") -> str:
        """Write rows of ids and bodies to a file."""
        path = self.folder / f"{name}.{file_format}"
        match file_format:
            case "parquet":
                pq.write_table(pa.Table.from_pylist(list(map(dict, rows)), schema=SIMPLE), path)
            case "json":
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            case _:
                with path.open("w", newline="") as opened:
                    writer = csv.DictWriter(opened, ["id", "body"])
                    writer.writeheader()
                    writer.writerows(rows)
        return str(path)

    def load(self, *files: str, **options: Any) -> LoadReport:
        return load_files(NAME, files, settings=self.settings, **options)

    def refused(self, *files: str, **options: Any) -> str:
        """Load what can't be loaded; returns the sentence after checking that nothing happened."""
        before = self.version
        with pytest.raises(UsageError) as refusal:
            self.load(*files, **options)
        assert self.version == before
        assert "\n" not in str(refusal.value)
        return str(refusal.value)


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run the calls in threads that begin together; returns their results in order."""
    ready = threading.Barrier(len(calls), timeout=30)

    def run(call: Callable[[], T]) -> T:
        ready.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls, timeout=120))

"""An example of a consumer that lives outside the package: an index kept in one JSON file.

The file holds the rows and the watermark, and is replaced whole: data and watermark in one step.
`LEDGER_WORK=long` in the environment makes it start a job in Spark that takes hours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp_dagster.consumers.base import (
    Consumer,
    ConsumerResult,
    SourceFacts,
    check_options,
    resolve_columns,
)
from iscp_dagster.errors import IndexBehindWindow
from iscp_dagster.rules.model import TS, Table, Window
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.spark.sql import columns

if TYPE_CHECKING:
    from iscp_dagster.sources.changes import Changes


class Ledger(Consumer):
    """The key of each row with one column of it, as JSON."""

    type = "ledger"
    kinds = frozenset({"json"})

    @classmethod
    def check_spec(cls, spec: JobSpec, facts: SourceFacts) -> None:
        check_options(spec, ("of",), required=("of",))
        resolve_columns("of", [spec.options["of"]], facts)

    @classmethod
    def source_columns(
        cls, spec: JobSpec, pk: Sequence[str], facts: SourceFacts
    ) -> tuple[str, ...]:
        return (*pk, spec.options["of"])

    def prepare(self, spec: JobSpec, table: Table, facts: SourceFacts) -> None:
        self._pk, self._of = table.pk, spec.options["of"]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self._pk, self._of)

    def apply(self, changes: Changes, window: Window) -> ConsumerResult:
        if os.environ.get("LEDGER_WORK") == "long" and not window.start.is_zero:
            # One task only: the other core is for the others.
            changes.spark.range(0, 1 << 60, 1, 1).selectExpr("sum(hash(id))").collect()
        before = self._read()
        rows: dict[str, Any] = {} if changes.kind == "snapshot" else before["rows"]
        if changes.kind != "snapshot" and TS.parse(before["watermark"]) != window.start:
            raise IndexBehindWindow(f"{self.place.key} stands at {before['watermark']}")
        gone = changes.deletes.select(*columns(self._pk)).collect()
        there = changes.upserts.select(*columns(self.columns)).collect()
        for row in gone:
            rows.pop(json.dumps(list(row)), None)
        rows.update({json.dumps(list(row[:-1])): row[-1] for row in there})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps({"watermark": str(window.end), "rows": rows}))
        written.replace(self._path)
        return ConsumerResult(window.end, len(there), len(gone), row_count=len(rows))

    def watermark(self) -> TS:
        return TS.parse(self._read()["watermark"])

    def drop(self) -> None:
        self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path:
        return Path(self.place.uri) / "ledger.json"

    def _read(self) -> dict[str, Any]:
        if not self._path.exists():
            return {"watermark": "0", "rows": {}}
        return json.loads(self._path.read_text())

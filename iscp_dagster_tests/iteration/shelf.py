"""A small table with one lookup over all its columns, to change, spoil and lose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import write_deltalake

from iscp_dagster import api
from iscp_dagster.rules.model import IterationKind, Job
from iscp_dagster_tests.iteration.works import Works

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEED = {"delta.enableChangeDataFeed": "true"}
SHELF = pa.schema([("id", pa.int64()), ("section", pa.string()), ("price", pa.int64())])
LOOK = {"type": "lookup", "columns": ["price"], "options": {"by": "section"}}


class Shelf:
    """A small table with one lookup over all its columns."""

    def __init__(self, works: Works, name: str) -> None:
        self.works, self.name = works, name
        self.uri = str(works.house.path(name))
        self.write(SHELF, 1, 2, 3)
        api.add_table(f"shop.{name}", uri=self.uri, pk=["id"], log=works.house.log)
        api.register_job(f"shop.{name}", "look", LOOK, log=works.house.log)

    def synced(self) -> Shelf:
        """Bring the index up to date."""
        self.works.catch_up(self.name)
        return self

    @property
    def job(self) -> Job:
        return self.works.house.job(self.name, "look")

    @property
    def head(self) -> int:
        return self.works.house.head(self.name)

    def write(self, schema: pa.Schema, *ids: int, mode: Any = "overwrite") -> None:
        """Write rows, all columns filled from the id."""
        made = {"string": lambda i: f"s{i}", "int64": lambda i: i, "double": float}
        rows = {field.name: [made[str(field.type)](i) for i in ids] for field in schema}
        how: Any = "merge" if mode == "append" else "overwrite"
        table = pa.table(rows, schema=schema)
        write_deltalake(self.uri, table, mode=mode, schema_mode=how, configuration=FEED)

    def index(self, spark: SparkSession) -> list[tuple[Any, ...]]:
        """What the index holds."""
        rows = spark.read.format("delta").load(self.works.uri(self.job))
        return sorted(tuple(row) for row in rows.select("id", "section", "price").collect())

    def last_iteration(self) -> tuple[IterationKind, int, int]:
        """Kind, start and end of the newest iteration."""
        (record,) = self.works.house.log.iterations.list(limit=1, table=self.job.key.table_key)
        return record.kind, record.window.start.version, record.window.end.version

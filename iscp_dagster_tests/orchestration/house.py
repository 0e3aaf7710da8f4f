"""A home with a log, a Dagster instance and real Delta tables, for tests of the runner.

Tables are written through delta-rs: a commit costs milliseconds there.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from dagster import (
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    SensorEvaluationContext,
    SensorResult,
)
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from deltalake import DeltaTable, write_deltalake

from iscp_dagster import api
from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.build import build_definitions
from iscp_dagster.orchestration.runs import request_of
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import TS, Job, Stage, TableKey, Window
from iscp_dagster.settings import Settings
from iscp_dagster.sources.delta_log import open_log

LOOKUP = {"type": "lookup", "options": {"by": "section"}}


def now() -> datetime:
    """The time, for what takes it as an argument."""
    return datetime.now(UTC)


@dataclass
class House:
    """A log and its tables; tables go by short names, their database is `shop`."""

    settings: Settings
    log: JobLog
    folder: Path
    _next_id: int = 0
    _ticks: int = field(default=0, repr=False)

    def table(self, name: str = "items", rows: int = 3) -> TableKey:
        """Make a table of so many rows and record it."""
        self.commit(name, rows)
        api.add_table(f"shop.{name}", uri=str(self.path(name)), pk=["id"], log=self.log)
        return TableKey("sys", "shop", name)

    def path(self, name: str) -> Path:
        """Where a table is."""
        return self.folder / name

    def commit(self, name: str = "items", rows: int = 1) -> int:
        """Append rows in one commit; returns its version."""
        ids = range(self._next_id, self._next_id + rows)
        self._next_id += rows
        data = {"id": pa.array(ids, pa.int64()), "section": [f"s{i % 3}" for i in ids]}
        write_deltalake(
            self.path(name),
            pa.table(data),
            mode="append",
            configuration={"delta.enableChangeDataFeed": "true"},
        )
        return self.head(name)

    def optimize(self, name: str = "items") -> int:
        """Make a commit that changes no data; returns its version."""
        DeltaTable(self.path(name)).optimize.compact()
        return self.head(name)

    def set_property(self, name: str = "items") -> int:
        """Make a commit that changes a property only; returns its version."""
        DeltaTable(self.path(name)).alter.set_table_properties({"delta.appendOnly": "false"})
        return self.head(name)

    def head(self, name: str = "items") -> int:
        """The newest version."""
        return DeltaTable(self.path(name)).version()

    def ts(self, name: str, version: int) -> TS:
        """A version as a point in history."""
        if version < 0:
            return TS.zero()
        return open_log(str(self.path(name)), {}).read(version, 1, None)[0].commit.ts

    def window(self, start: int, end: int, name: str = "items") -> Window:
        """A window of a table; -1 is before the first commit."""
        return Window(self.ts(name, start), self.ts(name, end))

    def register(self, table: str = "items", job: str = "look", **spec: Any) -> Job:
        """Register a lookup job."""
        assert api.register_job(f"shop.{table}", job, {**LOOKUP, **spec}, log=self.log)
        return self.job(table, job)

    def standing(self, table: str, job: str, version: int, **spec: Any) -> Job:
        """Register a job whose log row says it stands at a version."""
        row = self.register(table, job, **spec)
        return self.log.jobs.compare_and_set(
            row, watermark=self.ts(table, version), stage=Stage.TAIL
        )

    def job(self, table: str = "items", job: str = "look") -> Job:
        """A job as the log has it."""
        return api.get_job(f"shop.{table}", job, log=self.log)

    def set(self, table: str, job: str, **changes: Any) -> Job:
        """Write to a job's row, as its run would."""
        return self.log.jobs.compare_and_set(self.job(table, job), **changes)

    def definitions(self) -> Definitions:
        """What the log holds, as Dagster loads it."""
        return build_definitions(self.settings)

    def database(self, statement: str, *values: object) -> None:
        """Change the log behind its back."""
        connection = sqlite3.connect(self.settings.home / "iscp.db")
        with connection:
            connection.execute(statement, values)
        connection.close()


def context_of(
    instance: DagsterInstance, definitions: Definitions, *, tick: int | None = None
) -> SensorEvaluationContext:
    """What Dagster evaluates a sensor with; without a tick's number it is the UI's test button."""
    return SensorEvaluationContext(
        instance_ref=None,
        last_tick_completion_time=None,
        last_run_key=None,
        cursor=None,
        log_key=None if tick is None else ["__repository__", "iscp_runner", str(tick)],
        repository_name="__repository__",
        sensor_name="iscp_runner",
        repository_def=definitions.get_repository_def(),
        instance=instance,
    )


@dataclass
class Sensor:
    """The runner's sensor as the daemon and the UI evaluate it."""

    instance: DagsterInstance
    definitions: Definitions
    name: str = "iscp_runner"
    ticks: int = 0

    def tick(self) -> SensorResult:
        """A tick of the daemon's."""
        self.ticks += 1
        return self._evaluate(self.ticks)

    def test(self) -> SensorResult:
        """An evaluation from the UI's test button."""
        return self._evaluate(None)

    def _evaluate(self, tick: int | None) -> SensorResult:
        with context_of(self.instance, self.definitions, tick=tick) as context:
            repository = self.definitions.get_repository_def()
            result = repository.get_sensor_def(self.name)(context)
        assert isinstance(result, SensorResult)
        return result


def run_of(
    instance: DagsterInstance,
    iteration: Iteration,
    jobs: dict[int, Job],
    status: DagsterRunStatus = DagsterRunStatus.QUEUED,
) -> DagsterRun:
    """A run as Dagster makes it of the runner's request, in some status."""
    request = request_of(iteration, jobs)
    tags = {**request.tags, "dagster/run_key": str(request.run_key)}
    return make_run(instance, status, tags)


def make_run(
    instance: DagsterInstance, status: DagsterRunStatus, tags: dict[str, str]
) -> DagsterRun:
    """A run in some status; only one with an origin can be queued."""
    code = InProcessCodeLocationOrigin(
        loadable_target_origin=LoadableTargetOrigin(module_name="iscp_dagster.definitions")
    )
    return create_run_for_test(
        instance,
        job_name="__ASSET_JOB",
        status=status,
        tags=tags,
        remote_job_origin=RemoteJobOrigin(
            RemoteRepositoryOrigin(code, "__repository__"), "__ASSET_JOB"
        ),
    )


def dump(folder: Path) -> dict[str, list[str]]:
    """Everything in the SQLite files of a folder, but for when it was last looked at."""
    found = {}
    for file in sorted(folder.rglob("*.db")):
        connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        found[str(file.relative_to(folder))] = list(connection.iterdump())
        connection.close()
    return found

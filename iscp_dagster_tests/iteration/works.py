"""A table with one index of each Delta kind and a plug-in's, and what tests do to them.

The table is the one that the invariant of consumers is proved on: composite key, NULL groups,
decimals, floats and quotes in text. An index is *right* when it holds what plain SQL makes of the
table at its watermark, each window went into it exactly once, and the log says the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from dagster import AssetKey, AssetMaterialization, DagsterInstance, DagsterRun, DagsterRunStatus
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from iscp_dagster import api
from iscp_dagster.embedders.registry import get_embedder
from iscp_dagster.iteration import faults
from iscp_dagster.orchestration.names import partitions_name
from iscp_dagster.orchestration.runner import Runner
from iscp_dagster.orchestration.sync import SyncReport, sync
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import TS, Job, JobState, TableKey, Window
from iscp_dagster.stores.lance_index import LanceIndex
from iscp_dagster.stores.paths import index_uri
from iscp_dagster_tests.consumers.shop import Shop, comparable
from iscp_dagster_tests.consumers.test_invariant import CASES
from iscp_dagster_tests.orchestration.house import House, now

PLUG_INS = Path(__file__).with_name("plug_ins")
DELTA = {"copy": "mirror", "look": "lookup", "sums": "aggregate"}
"""The jobs whose index is a Delta table, with the case of the invariant that each is."""
LEDGER = {"type": "ledger", "options": {"of": "size"}}
LANCE: dict[str, dict[str, Any]] = {
    "words": {"type": "fulltext", "columns": ["note"], "options": {"include": "section"}},
    "near": {
        "type": "vector",
        "columns": ["section"],
        "options": {"embedder": "letters", "include": "size"},
    },
}
"""More jobs, whose index is a Lance dataset, for tests that take them in."""
NAMES = (*DELTA, "ledger")
METADATA = {
    "iscp/from_ts",
    "iscp/to_ts",
    "iscp/watermark",
    "iscp/source_version",
    "iscp/rows_scanned",
    "iscp/rows_upserted",
    "iscp/rows_deleted",
    "iscp/rows_skipped",
    "iscp/shared_by",
    "iscp/scan_seconds",
    "iscp/consumer_seconds",
    "iscp/lag_seconds",
    "dagster/row_count",
    "dagster/uri",
    "dagster/column_schema",
}
WAIT_SECONDS = 120.0
_SYNC = "from iscp_dagster.cli.main import main; main(['sync', '--table', 'shop.items'])"


@dataclass
class Works:
    """A home with the table `shop.items`; other tables go through the house."""

    house: House
    instance: DagsterInstance
    source: Shop
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def build(self) -> None:
        """Record the table and register its jobs."""
        api.add_table(
            "shop.items", uri=self.source.uri, pk=list(self.source.pk), log=self.house.log
        )
        for name, case in DELTA.items():
            api.register_job("shop.items", name, CASES[case].spec, log=self.house.log)
        api.register_job("shop.items", "ledger", LEDGER, log=self.house.log)

    def catch_up(self, table: str = "items") -> None:
        """Bring a table's indexes to its newest version, whatever a test left behind."""
        for job in self.house.log.jobs.list(table=TableKey.parse(f"shop.{table}")):
            self.house.log.jobs.repair(job.key)
        assert self.sync(table, attempts=3).behind == ()

    def sync(self, table: str = "items", *, attempts: int = 1) -> SyncReport:
        """Sync a table in this process."""
        key = TableKey.parse(f"shop.{table}")
        return sync(self.house.settings, self.instance, tables=[key], attempts=attempts)

    def job(self, name: str) -> Job:
        """A job as the log has it."""
        return self.house.job("items", name)

    def versions(self, *names: str) -> list[int]:
        """Where the log says that indexes stand."""
        return [self.job(name).watermark.version for name in names or NAMES]

    def change(self) -> int:
        """Make a few commits of every kind; returns the newest version."""
        self.source.insert(3)
        self.source.update({"price": "price + 1.25", "section": "'net'"}, "id % 5 = 1")
        self.source.delete("id % 7 = 3")
        self.source.churn()
        return self.source.version

    def planned(self) -> list[Iteration]:
        """What a runner that starts now would do."""
        only = frozenset({TableKey.parse("shop.items")})
        return list(Runner(self.house.log, only=only).tick([], now()).plan.iterations)

    def uri(self, job: Job) -> str:
        """Where a job's index is."""
        return index_uri(self.house.settings.warehouse, job.key, job.job_id)

    def materializations(self, name: str, table: str = "items") -> list[AssetMaterialization]:
        """What Dagster has of an index, newest first."""
        key = AssetKey(self.house.job(table, name).key.asset_path)
        found = self.instance.fetch_materializations(key, limit=100).records
        return [record.asset_materialization for record in found if record.asset_materialization]

    def is_right(self, *names: str) -> bool:
        """Whether indexes are right; asserts, so that a failure tells what is wrong."""
        for name in names or NAMES:
            job = self.job(name)
            if name == "ledger":
                self._ledger_is_right(job)
            elif name in LANCE:
                self._lance_is_right(job)
            else:
                self._index_is_right(job, DELTA[name])
        return True

    def _index_is_right(self, job: Job, case_name: str) -> None:
        case, spark = CASES[case_name], SparkSession.builder.getOrCreate()
        marks = windows_in(self.uri(job))
        assert marks[-1].end == job.watermark
        assert marks[0].start.is_zero
        assert all(one.end == other.start for one, other in pairwise(marks)), marks
        self._table_at(job.watermark).createOrReplaceTempView("source")
        index = spark.read.format("delta").load(self.uri(job))
        found = comparable(index.selectExpr(*case.columns.split(", ")).collect())
        assert found == comparable(spark.sql(case.sql).collect())

    def _lance_is_right(self, job: Job) -> None:
        (content,), more = job.spec.columns, job.spec.options["include"]
        reader = LanceIndex.open(self.uri(job))
        assert reader.watermark == job.watermark
        rows = self._table_at(job.watermark).where(f"{content} <> ''").collect()
        names = ["region", "id", more]
        expected = [[row[name] for name in names] for row in rows]
        if "embedder" in job.spec.options:
            names.append("vector")
            vectors = get_embedder("letters").embed([row[content] for row in rows]).tolist()
            expected = [[*row, vector] for row, vector in zip(expected, vectors, strict=True)]
        held = reader.dataset.to_table(columns=names, filter="_ctl IS NULL").to_pylist()
        found = [[row[name] for name in names] for row in held]
        assert comparable(found) == comparable(expected)

    def _ledger_is_right(self, job: Job) -> None:
        kept = json.loads((Path(self.uri(job)) / "ledger.json").read_text())
        assert TS.parse(kept["watermark"]) == job.watermark
        rows = self._table_at(job.watermark).select("region", "id", "size").collect()
        assert kept["rows"] == {json.dumps([r["region"], r["id"]]): r["size"] for r in rows}

    def _table_at(self, at: TS):
        spark = SparkSession.builder.getOrCreate()
        return spark.read.format("delta").option("versionAsOf", at.version).load(self.source.uri)

    def nothing_is_left(self) -> bool:
        """Whether no iteration, run or claim is open."""
        assert self.house.log.iterations.open() == []
        assert [run.status for run in self.instance.get_runs() if not run.is_finished] == []
        jobs = self.house.log.jobs.list()
        assert all(isinstance(job, Job) and job.state is not JobState.RUNNING for job in jobs)
        return True

    def by_hand(
        self, window: Window | str, *names: str, table: str = "items", known: bool = True
    ) -> tuple[DagsterRun, str]:
        """Materialize a window as from the UI; returns the run and what it failed with."""
        key = window if isinstance(window, str) else window.partition_key
        of = self.house.job(table, names[0]).key.table_key
        if known:
            self.instance.add_dynamic_partitions(partitions_name(of), [key])
        job = self.house.definitions().resolve_implicit_global_asset_job_def()
        result = job.get_subset(
            asset_selection={AssetKey(of.job(name).asset_path) for name in names},
            asset_check_selection=set(),
        ).execute_in_process(instance=self.instance, partition_key=key, raise_on_error=False)
        return result.dagster_run, failure_of(self.instance, result.dagster_run)

    def start(self, fault: str, **environ: str) -> subprocess.Popen[bytes]:
        """Start a sync in a process of its own."""
        process = subprocess.Popen(
            [sys.executable, "-c", _SYNC],
            env={**os.environ, "PYTHONPATH": str(PLUG_INS), "ISCP_FAULT": fault, **environ},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.started.append(process)
        return process

    def end_processes(self) -> None:
        """End what a failed test left running."""
        while self.started:
            process = self.started.pop()
            process.kill()
            process.wait()


def windows_in(uri: str) -> list[Window]:
    """The windows that the commits of a Delta index say they hold, oldest first."""
    history = reversed(DeltaTable(uri).history())
    marks = [json.loads(text) for commit in history if (text := commit.get("userMetadata"))]
    return [Window(TS.parse(mark["from"]), TS.parse(mark["to"])) for mark in marks]


def failure_of(instance: DagsterInstance, run: DagsterRun) -> str:
    """What a run's step failed with, as the UI shows it; nothing of a run that did not."""
    for entry in instance.all_logs(run.run_id):
        event = entry.dagster_event
        if event is not None and event.is_step_failure:
            data = event.step_failure_data
            told = data.user_failure_data.description if data.user_failure_data else None
            return told or (data.error.message if data.error else "")
    return ""


def last_run(instance: DagsterInstance, *statuses: DagsterRunStatus) -> DagsterRun:
    """The newest run, or the newest of some status."""
    return next(run for run in instance.get_runs() if not statuses or run.status in statuses)


@contextmanager
def meanwhile(work: Callable[[], Any], *points: str) -> Iterator[threading.Thread]:
    """Run `work` on a thread up to fault points that pause; on leaving, wait until it ends."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    until(lambda: faults.paused.issuperset(points), f"{points} are reached")
    yield thread
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


def until(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)
    return found


@dataclass(frozen=True)
class SparkJob:
    """A job of Spark's, as its status store has it."""

    id: int
    status: str
    tags: frozenset[str]
    stages: tuple[int, ...]


def spark_jobs(spark: SparkSession, tag: str = "") -> list[SparkJob]:
    """The jobs that carry a tag, or any of ours."""
    found = []
    for job in _each(_status_store(spark).jobsList(None)):
        tags = frozenset(_each(job.jobTags()))
        if tag in tags or (not tag and any(one.startswith("iscp-") for one in tags)):
            stages = tuple(_each(job.stageIds()))
            found.append(SparkJob(job.jobId(), job.status().toString(), tags, stages))
    return found


def bytes_read(spark: SparkSession, tag: str) -> int:
    """The bytes that the stages of a tag's jobs read from files and from the cache."""
    stages = {stage for job in spark_jobs(spark, tag) for stage in job.stages}
    # Stages that were skipped, since their output was there already, are the first to be forgotten.
    listed = _each(_status_store(spark).stageList(None, False, False, _no_quantiles(spark), None))
    return sum(stage.inputBytes() for stage in listed if stage.stageId() in stages)


def _status_store(spark: SparkSession) -> Any:
    context: Any = spark.sparkContext
    return context._jsc.sc().statusStore()


def _no_quantiles(spark: SparkSession) -> Any:
    gateway: Any = spark.sparkContext._gateway
    return gateway.new_array(gateway.jvm.double, 0)


def _each(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()

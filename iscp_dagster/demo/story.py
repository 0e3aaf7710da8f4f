"""The demo's story: a table, its indexes, a first sync, changes, a second sync, and the proof.

Everything goes through the public functions that a user would call; only the clean-up at the start,
which makes the demo repeatable, reaches for its own files.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from iscp_dagster import api
from iscp_dagster.demo.corpus import Doc, standard_library
from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.instance import open_instance
from iscp_dagster.orchestration.sync import SyncReport, sync
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import TableKey
from iscp_dagster.settings import Settings
from iscp_dagster.views import job_views

if TYPE_CHECKING:
    from deltalake.table import TableMerger

TABLE = "demo.stdlib"
JOBS: dict[str, dict[str, Any]] = {
    "copy": {
        "type": "mirror",
        "columns": ["name", "module", "doc"],
        "options": {"where": "kind <> 'module'"},
        "description": "Everything but the modules themselves.",
    },
    "by_module": {
        "type": "lookup",
        "columns": ["module", "kind", "signature"],
        "options": {"by": "module"},
        "description": "Finds what a module holds without reading the whole table.",
    },
    "per_module": {
        "type": "aggregate",
        "options": {"group_by": "module", "measures": "count,sum:doc_chars,max:doc_chars"},
        "description": "How much each module documents.",
    },
}
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo did and found."""

    rows: int
    first_sync_seconds: float
    changed: int
    second_sync_seconds: float
    scans: int
    checks: dict[str, bool]
    """Per index: whether it equals what a build from scratch would hold."""
    jobs: list[dict[str, Any]]

    @property
    def passed(self) -> bool:
        """Whether every index is right."""
        return all(self.checks.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the report for machines."""
        return asdict(self)


def run_demo(settings: Settings, say: Say, step: Callable[[str], Any]) -> DemoReport:
    """Tell the whole story; `say` prints a line, `step` shows that something takes a while."""
    uri = demo_table_uri(settings)
    with step("writing the table"):
        docs = make_demo(settings)
    say(f"{len(docs)} rows of this Python's own documentation, a Delta table at {uri}")
    say(f"{len(JOBS)} indexes registered: {', '.join(JOBS)}")
    with step("first sync: each new index is built from a snapshot"):
        _, first_seconds = _sync(settings, say)
    changed = _change(uri, docs)
    say(f"{changed} rows changed: edited, added, deleted")
    with step("second sync: one scan of the change feed"):
        second, second_seconds = _sync(settings, say)
    with step("comparing each index with a build from scratch"):
        checks = _check(settings, uri)
    return DemoReport(
        rows=len(docs),
        first_sync_seconds=round(first_seconds, 1),
        changed=changed,
        second_sync_seconds=round(second_seconds, 1),
        scans=second.iterations,
        checks=checks,
        jobs=job_views(table=TABLE),
    )


def demo_table_uri(settings: Settings) -> Path:
    """Return where the demo's table is."""
    return settings.home / "demo" / "stdlib"


def make_demo(settings: Settings) -> list[Doc]:
    """Make the demo's table anew and register its indexes; returns the table's rows."""
    uri = demo_table_uri(settings)
    _start_over(uri)
    docs = standard_library()
    _write(uri, docs)
    api.add_table(TABLE, uri=str(uri), pk=["name"])
    for name, spec in JOBS.items():
        api.register_job(TABLE, name, spec)
    return docs


def change_some(uri: Path, chance: random.Random, rows: int) -> None:
    """Edit some rows, in one commit."""
    edited = [
        replace(doc, doc=f"{doc.doc}\n\nRead again ({chance.randrange(1000)}).")
        for doc in chance.sample(standard_library(), rows)
    ]
    _merge(uri, edited).when_matched_update_all().when_not_matched_insert_all().execute()


def _start_over(uri: Path) -> None:
    key = TableKey.parse(TABLE)
    with JobLog.open(Settings.from_env()) as log:
        for job in log.jobs.list(table=key):
            api.unregister_job(TABLE, job.key.name, log=log)
        api.drop_table(TABLE, log=log)
    shutil.rmtree(uri, ignore_errors=True)


def _write(uri: Path, docs: Sequence[Doc]) -> None:
    from deltalake import write_deltalake

    uri.parent.mkdir(parents=True, exist_ok=True)
    write_deltalake(str(uri), _table(docs), configuration={"delta.enableChangeDataFeed": "true"})


def _table(docs: Sequence[Doc]):
    import pyarrow as pa

    return pa.Table.from_pylist(
        [{**asdict(doc), "doc_chars": len(doc.doc)} for doc in docs],
        schema=pa.schema(
            [(name, pa.string()) for name in ("name", "module", "kind", "signature", "doc")]
            + [("doc_chars", pa.int64())]
        ),
    )


def _change(uri: Path, docs: Sequence[Doc]) -> int:
    """Edit every tenth row, delete every fiftieth, add a module that is not there yet."""
    from deltalake import write_deltalake

    edited = [replace(doc, doc=f"{doc.doc}\n\nRead again.") for doc in docs[::10]]
    _merge(uri, edited).when_matched_update_all().execute()
    deleted = docs[5::50]
    _merge(uri, deleted).when_matched_delete().execute()
    added = [
        Doc(f"asyncindex.step_{number}", "asyncindex", "function", "()", f"Step {number}.")
        for number in range(50)
    ]
    write_deltalake(str(uri), _table(added), mode="append")
    return len(edited) + len(deleted) + len(added)


def _merge(uri: Path, docs: Sequence[Doc]) -> TableMerger:
    from deltalake import DeltaTable

    return DeltaTable(str(uri)).merge(
        _table(docs), predicate="old.name = new.name", source_alias="new", target_alias="old"
    )


def _sync(settings: Settings, say: Say) -> tuple[SyncReport, float]:
    def told(iteration: Iteration, succeeded: bool) -> None:
        how = "" if succeeded else " FAILED"
        say(f"  {iteration.kind} {iteration.window}: {', '.join(iteration.job_names)}{how}")

    started = perf_counter()
    with open_instance(settings) as instance:
        report = sync(settings, instance, tables=[TableKey.parse(TABLE)], on_iteration=told)
    return report, perf_counter() - started


def _check(settings: Settings, uri: Path) -> dict[str, bool]:
    """Compare each index with what SQL says of the table itself, by another engine than Spark."""
    expected = {
        "copy": "select name, module, doc from source where kind <> 'module'",
        "by_module": "select name, module, kind, signature from source",
        "per_module": "select module, count(*), sum(doc_chars), max(doc_chars) from source "
        "group by module",
    }
    actual = {
        "copy": "select name, module, doc from index",
        "by_module": "select name, module, kind, signature from index",
        "per_module": "select module, count, sum_doc_chars, max_doc_chars from index",
    }
    places = {view["job"]: view["uri"] for view in job_views(table=TABLE)}
    return {
        job: _rows(str(uri), "source", expected[job]) == _rows(places[job], "index", actual[job])
        for job in JOBS
    }


def _rows(uri: str, name: str, query: str) -> list[tuple[Any, ...]]:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    batches = QueryBuilder().register(name, DeltaTable(uri)).execute(query).read_all()
    found = pa.table(batches)
    return sorted(tuple(row.values()) for row in found.to_pylist())


@contextmanager
def no_step(_text: str) -> Iterator[None]:
    """Show nothing while something takes a while."""
    yield

"""The examples of the how-to pages, installed and run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from iscp_dagster import api
from iscp_dagster.consumers.base import IndexPlace
from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.errors import IndexBehindWindow, SourceColumnChanged, UsageError
from iscp_dagster.orchestration.instance import open_instance
from iscp_dagster.orchestration.runner import Runner
from iscp_dagster.orchestration.sync import sync
from iscp_dagster.rules.model import Job
from iscp_dagster.sources.changes import retrieve_or_snapshot
from iscp_dagster.sources.facts import read_facts
from iscp_dagster.stores.paths import index_uri
from iscp_dagster_tests.orchestration.house import House

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Install = Callable[[str], None]
COPY = {"type": "sqlite_copy", "columns": ["section"], "options": {}}


def synced(house: House) -> Job:
    """The job of `shop.items`, after a sync."""
    with open_instance(house.settings) as instance:
        assert sync(house.settings, instance).behind == ()
    return house.job("items", "copy")


def kept_by(house: House, job: Job) -> dict[int, str]:
    """What the SQLite file of a job holds: section by id."""
    uri = index_uri(house.settings.warehouse, job.key, job.job_id)
    connection = sqlite3.connect(Path(uri) / "entries.db")
    rows = connection.execute("select key, entry from entries").fetchall()
    connection.close()
    return {json.loads(key)[0]: json.loads(entry)["section"] for key, entry in rows}


def expected(house: House) -> dict[int, str]:
    """What the table holds: section by id."""
    rows = DeltaTable(house.path("items")).to_pyarrow_table().to_pylist()
    return {row["id"]: row["section"] for row in rows}


@pytest.mark.spark
def test_the_consumer_of_the_docs_follows_its_table_and_honours_the_contract(
    installed: Install, house: House, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(house.settings.home))
    installed("sqlite_copy")
    house.table("items", rows=5)
    house.register("items", "copy", **COPY)
    job = synced(house)
    assert kept_by(house, job) == expected(house)
    house.commit("items", rows=2)
    DeltaTable(house.path("items")).delete("id = 1")
    DeltaTable(house.path("items")).update(predicate="id = 2", new_values={"section": "'sold'"})
    job = synced(house)
    assert job.watermark.version == house.head("items")
    assert kept_by(house, job) == expected(house)
    _a_window_counts_once_and_none_is_left_out(house, job, spark)


def _a_window_counts_once_and_none_is_left_out(house: House, job: Job, spark: SparkSession) -> None:
    table = house.log.tables.get(job.key.table_key)
    uri = index_uri(house.settings.warehouse, job.key, job.job_id)
    consumer = get_consumer_class("sqlite_copy")(IndexPlace(job.key, job.job_id, uri), spark)
    consumer.prepare(job.spec, table, read_facts(table.uri))
    before = kept_by(house, job)
    again = house.window(0, job.watermark.version)
    with retrieve_or_snapshot(spark, table, again, consumer.columns, readers=1) as changes:
        assert consumer.apply(changes, again).no_op
    house.commit("items")
    house.commit("items")
    gap = house.window(house.head("items") - 1, house.head("items"))
    with (
        retrieve_or_snapshot(spark, table, gap, consumer.columns, readers=1) as changes,
        pytest.raises(IndexBehindWindow),
    ):
        consumer.apply(changes, gap)
    assert kept_by(house, job) == before
    assert consumer.watermark() == job.watermark
    consumer.drop()
    assert consumer.watermark().is_zero


def test_the_consumer_of_the_docs_refuses_what_does_not_fit_its_table(
    installed: Install, house: House
) -> None:
    installed("sqlite_copy")
    house.table("items")
    for columns, said in (([], "needs some"), (["colour"], "no column 'colour'")):
        with pytest.raises(UsageError, match=said):
            house.register("items", "copy", **{**COPY, "columns": columns})
    job = house.register("items", "copy", **COPY)
    consumer = get_consumer_class("sqlite_copy")(IndexPlace(job.key, 1, str(house.folder)))
    house.table("other")
    facts = read_facts(str(house.path("other")))
    gone = job.spec.model_copy(update={"columns": ("colour",)})
    with pytest.raises(SourceColumnChanged, match="colour"):
        consumer.prepare(gone, api.get_tables(log=house.log)[0], facts)


def test_the_trigger_of_the_docs_waits_for_rest_but_not_for_ever(
    installed: Install, house: House
) -> None:
    installed("settled_trigger")
    house.table("items")
    house.standing("items", "look", 0, trigger={"kind": "settled"})
    house.commit("items")
    first = house.ts("items", 1).time
    runner = Runner(house.log)

    def windows(after: timedelta) -> list[str]:
        tick = runner.tick([], first.astimezone(UTC) + after)
        return [str(iteration.window) for iteration in tick.plan.iterations]

    assert windows(timedelta(seconds=5)) == []
    assert windows(timedelta(seconds=31)) == ["(v0, v1]"]
    # Commits that never stop: here, one that comes nine minutes and fifty seconds later.
    late = house.path("items") / "_delta_log" / f"{house.commit('items'):020}.json"
    at = int((first + timedelta(minutes=9, seconds=50)).timestamp() * 1000)
    lines = [json.loads(line) for line in late.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["timestamp"] = at
    late.write_text("\n".join(map(json.dumps, lines)))
    assert windows(timedelta(minutes=9, seconds=55)) == []
    assert windows(timedelta(minutes=10, seconds=1)) == ["(v0, v2]"]


def test_a_table_that_did_not_change_starts_nothing(installed: Install, house: House) -> None:
    installed("settled_trigger")
    house.table("items")
    house.standing("items", "look", 0, trigger={"kind": "settled"})
    tick = Runner(house.log).tick([], datetime.now(UTC) + timedelta(hours=1))
    assert tick.plan.iterations == ()
    assert tick.plan.summary() == "1 table: 1 unchanged"

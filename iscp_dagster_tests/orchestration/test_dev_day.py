"""One full `iscp dev`, steered through GraphQL as its UI is: toggles, pages, a new job, Ctrl-C."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from iscp_dagster.cli.main import main
from iscp_dagster.orchestration.webserver import read_address
from iscp_dagster.stores.paths import index_uri
from iscp_dagster_tests.orchestration.dev import TABLE, Dev, free_port, refusal, until
from iscp_dagster_tests.orchestration.house import House
from iscp_dagster_tests.orchestration.processes import end_all_of, is_running, started_with


@pytest.fixture
def dev(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dev]:
    """`iscp dev` on a table with one index; afterwards nothing of it is left."""
    monkeypatch.setenv("DAGSTER_HOME", str(house.settings.home))
    monkeypatch.setenv("ISCP_SPARK_MASTER", "local[1]")
    house.table("items")
    house.register("items", "look")
    try:
        yield Dev(house, free_port(), tmp_path)
    finally:
        end_all_of(house.settings.home)


@pytest.mark.spark
@pytest.mark.dagster
@pytest.mark.timeout(600)
def test_a_day_with_iscp_dev(house: House, dev: Dev, capsys: pytest.CaptureFixture[str]):
    a_second_one_is_refused(dev, capsys)
    toggling_the_sensor_loses_and_doubles_nothing(house, dev)
    the_ui_shows_tables_and_indexes(dev)
    a_job_registered_by_the_cli_becomes_an_asset(dev, capsys)
    ctrl_c_stops_everything(house, dev)


def a_second_one_is_refused(dev: Dev, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "--port", str(free_port()))
    assert f"already, at http://127.0.0.1:{dev.port}; stop process {dev.process.pid}" in line


def toggling_the_sensor_loses_and_doubles_nothing(house: House, dev: Dev) -> None:
    dev.caught_up(0)
    dev.ui.turn(on=False)
    off = time.time()
    house.commit()
    house.commit()
    dev.ui.turn(on=True)
    on = time.time()
    house.commit()
    dev.until(dev.in_flight, "a run starts")
    # Off in the middle of a run: it ends as it would have, and what comes meanwhile waits.
    dev.ui.turn(on=False)
    house.commit()
    dev.ui.turn(on=True)
    dev.ui.turn(on=False)
    dev.ui.turn(on=True)
    version = house.commit()
    dev.caught_up(version)

    ticks = [tick["timestamp"] for tick in dev.ui.sensor()["sensorState"]["ticks"]]
    assert not [at for at in ticks if off < at < on]
    records = house.log.iterations.list(limit=100)[::-1]
    windows = [record.window for record in records]
    assert windows[0].start.is_zero
    assert windows[-1].end.version == version
    assert all(earlier.end == later.start for earlier, later in pairwise(windows))
    assert {record.consumers[0].error_code for record in records} == {0}
    statuses = [run["status"] for run in dev.ui.runs(iscp__table=TABLE)]
    assert statuses.count("SUCCESS") == len(windows)
    job = house.job()
    place = index_uri(house.settings.warehouse, job.key, job.live_job_id)
    assert rows_of(place) == rows_of(house.path("items"))


def rows_of(place: str | Path) -> list[tuple[Any, ...]]:
    query = (
        QueryBuilder().register("rows", DeltaTable(place)).execute("select id, section from rows")
    )
    rows = pa.table(query.read_all()).to_pylist()
    return sorted((row["id"], row["section"]) for row in rows)


def the_ui_shows_tables_and_indexes(dev: Dev) -> None:
    assets = dev.ui.assets()
    table, index = assets[TABLE], assets[f"{TABLE}/look"]
    assert index["dependencyKeys"] == [table["assetKey"]]
    assert (table["groupName"], index["groupName"]) == ("sys_shop", "sys_shop")
    assert (table["kinds"], index["kinds"]) == (["delta", "table"], ["delta", "lookup"])
    assert table["owners"] == index["owners"] == [{"team": "sys"}]
    assert "iscp search shop.items look section=VALUE" in index["description"]
    assert _labelled(table["metadataEntries"])["dagster/column_schema"]["schema"]["columns"]
    (latest,) = index["assetMaterializations"]
    told = _labelled(latest["metadataEntries"])
    columns = told["dagster/column_schema"]["schema"]["columns"]
    assert [column["name"] for column in columns] == ["id", "section"]
    assert told["dagster/column_lineage"]["lineage"][0]["columnDeps"] == [
        {"columnName": "id", "assetKey": {"path": TABLE.split("/")}}
    ]
    for plotted in ("lag_seconds", "freshness_seconds", "scan_seconds", "consumer_seconds"):
        assert told[f"iscp/{plotted}"]["floatValue"] >= 0
    for counted in ("iscp/rows_upserted", "iscp/source_version", "dagster/row_count"):
        assert told[counted]["intValue"] > 0
    window = latest["partition"]
    for tags in ({"iscp__account": "sys"}, {"iscp_job__look": "yes"}, {"iscp__window": window}):
        assert dev.ui.runs(**tags), tags
    assert len(dev.ui.runs(iscp__window=window)) == 1
    ticks = dev.ui.sensor()["sensorState"]["ticks"]
    assert {tick["skipReason"] for tick in ticks} <= {
        None,
        "1 table: 1 unchanged",
        "1 table: 1 in flight",
    }


def _labelled(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["label"]: entry for entry in entries}


def a_job_registered_by_the_cli_becomes_an_asset(
    dev: Dev, capsys: pytest.CaptureFixture[str]
) -> None:
    dev.ui.turn(on=False)
    begin = time.monotonic()
    with pytest.raises(SystemExit):
        main(["register", "shop.items", "copy", "--type", "mirror"])
    assert time.monotonic() - begin < 10
    assert capsys.readouterr() == ("sys/shop.items/copy: registered\n", "")
    dev.until(lambda: f"{TABLE}/copy" in dev.ui.assets(), "the new job is an asset")


def ctrl_c_stops_everything(house: House, dev: Dev) -> None:
    started = started_with(house.settings.home)
    assert len(started) >= 5
    dev.process.send_signal(signal.SIGINT)
    assert dev.process.wait(60) == 0
    dev_said = dev.said()
    assert "from commit to searchable" in dev_said
    assert "(v" in dev_said.rpartition("from commit to searchable")[2]
    until(lambda: not any(map(is_running, started)), "nothing of it is left")
    assert read_address(house.settings) is None
    # What they printed is still there: nobody took it away to send it anywhere.
    printed = {log.name.partition("-")[0] for log in (house.settings.home / "output").iterdir()}
    assert printed == {"dagster.log", "spark"}
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", dev.port), 1).close()

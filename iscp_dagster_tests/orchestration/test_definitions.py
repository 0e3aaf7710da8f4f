"""Tests of the definitions that the log's tables and jobs become."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from dagster import (
    AssetKey,
    DagsterInstance,
    DataVersion,
    Definitions,
    DynamicPartitionsDefinition,
)
from dagster._core.definitions.observe import observe
from deltalake import DeltaTable

from iscp_dagster.orchestration.build import build_definitions
from iscp_dagster.rules.model import TableKey
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster_tests.conftest import settings_in
from iscp_dagster_tests.orchestration.defined import asset_paths, in_plain_words, node_of
from iscp_dagster_tests.shop import NOW, Shop

SNAPSHOT = Path(__file__).parent / "snapshots" / "definitions.json"
UPDATE = "ISCP_UPDATE_SNAPSHOTS"
LOOKUP = {"type": "lookup", "options": {"by": "section"}}


def build(shop: Shop) -> Definitions:
    """Build the definitions and let Dagster check all of them."""
    definitions = build_definitions(shop.settings)
    Definitions.validate_loadable(definitions)
    return definitions


def test_an_empty_log_loads(shop: Shop) -> None:
    definitions = build(shop)
    assert asset_paths(definitions) == []
    assert [sensor.name for sensor in definitions.sensors or ()][:1] == ["iscp_runner"]


def test_the_entry_point_loads_from_a_log_that_is_not_there_yet(shop: Shop) -> None:
    code = (
        "from dagster import Definitions\n"
        "from iscp_dagster.definitions import defs\n"
        "Definitions.validate_loadable(defs)\n"
        "print(len(list(defs.assets)), 'assets')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 assets\n"


def test_every_table_and_job_is_an_asset_in_its_account(shop: Shop) -> None:
    for account in ("sys", "other"):
        shop.add_table("shop.items", account=account)
        shop.register("by-section", LOOKUP, account=account)
    shop.add_table("shop.empty")
    assert asset_paths(build(shop)) == [
        "other/shop/items",
        "other/shop/items/by-section",
        "sys/shop/empty",
        "sys/shop/items",
        "sys/shop/items/by-section",
    ]


def test_a_table_is_observable_and_an_index_hangs_on_it(shop: Shop) -> None:
    path = shop.add_table()
    shop.register("copy", {"type": "mirror", "owners": ["team:data", "a@b.org"]})
    definitions = build(shop)
    table = node_of(definitions, "sys/shop/items")
    assert (table.is_observable, table.is_materializable) == (True, False)
    assert table.kinds == {"delta", "table"}
    assert table.owners == ["team:sys"]
    assert table.partitions_def is None
    assert table.metadata["dagster/uri"] == str(path)
    assert [column.name for column in table.metadata["dagster/column_schema"].columns] == [
        "id",
        "section",
        "name",
        "price",
    ]
    index = node_of(definitions, "sys/shop/items/copy")
    assert (index.is_observable, index.is_materializable) == (False, True)
    assert index.parent_keys == {AssetKey(["sys", "shop", "items"])}
    assert index.kinds == {"delta", "mirror"}
    assert index.owners == ["team:data", "a@b.org"]
    assert index.group_name == table.group_name == "sys_shop"
    assert isinstance(index.partitions_def, DynamicPartitionsDefinition)
    assert index.partitions_def.name == "iscp/sys/shop/items"
    assert index.metadata["dagster/uri"] == f"{shop.home}/warehouse/_iscp/sys/shop/items/copy/1"


def test_an_index_nobody_is_named_for_belongs_to_its_account(shop: Shop) -> None:
    shop.add_table(account="acme")
    shop.register("copy", {"type": "mirror"}, account="acme")
    assert node_of(build(shop), "acme/shop/items/copy").owners == ["team:acme"]


def test_the_jobs_of_a_table_are_one_op_that_runs_any_of_them(shop: Shop) -> None:
    shop.add_table()
    for name in ("a", "b", "c"):
        shop.register(name, {"type": "mirror"})
    definitions = build(shop)
    (assets,) = {node_of(definitions, f"sys/shop/items/{name}").assets_def for name in "abc"}
    assert assets.can_subset
    assert len(assets.keys) == 3
    assert all(not output.is_required for output in assets.op.output_defs)


def test_observing_a_table_tells_its_newest_version(shop: Shop) -> None:
    path = shop.add_table()
    DeltaTable(path).delete("id = 1")
    table = node_of(build(shop), "sys/shop/items").assets_def
    with DagsterInstance.ephemeral() as instance:
        result = observe([table], instance=instance)
        (observed,) = result.asset_observations_for_node(table.op.name)
    assert observed.asset_key == AssetKey(["sys", "shop", "items"])
    assert observed.data_version == DataVersion("1").value
    assert observed.metadata["iscp/version"].value == 1


def test_names_that_read_alike_stay_apart(shop: Shop) -> None:
    for name in ("a.b_c", "a_b.c", "a.b-c", "a-b.c", "a.b_c_"):
        shop.add_table(name)
        for job in ("by-day", "by_day", "by__day", "by-_day"):
            shop.register(job, {"type": "mirror"}, table=name)
    definitions = build(shop)
    assert len(asset_paths(definitions)) == 5 + 5 * 4
    job = definitions.resolve_implicit_global_asset_job_def()
    observed, iterated, checked = 5, 5, 5 * 4
    assert len({node.name for node in job.nodes}) == observed + iterated + checked


def test_the_longest_names_load(shop: Shop) -> None:
    longest = "x" * 128
    with shop.open_log() as log:
        key = TableKey(longest, longest, longest)
        log.tables.add(key, uri="/nowhere", pk=("id",), delta_id="d", now=NOW)
        log.jobs.register(key.job(longest), JobSpec(type="mirror"), NOW)
    assert len(asset_paths(build(shop))) == 2


def test_a_job_of_a_plug_in_that_is_not_installed_stays_visible(shop: Shop) -> None:
    shop.add_table()
    shop.register("copy", {"type": "mirror"})
    with shop.open_log() as log:
        key = TableKey.parse("shop.items")
        log.jobs.register(key.job("odd"), JobSpec(type="a plug-in/" + "x" * 99), NOW)
        log.jobs.register(key.job("graph"), JobSpec(type="graph"), NOW)
    definitions = build(shop)
    node = node_of(definitions, "sys/shop/items/graph")
    assert node.kinds == {"graph"}
    assert "'graph' is unknown" in (node.description or "")
    assert node_of(definitions, "sys/shop/items/odd").parent_keys
    assert node_of(definitions, "sys/shop/items/copy").kinds == {"delta", "mirror"}


def test_a_row_that_can_not_be_read_hides_only_itself(shop: Shop) -> None:
    shop.add_table()
    shop.register("copy", {"type": "mirror"})
    shop.register("broken", {"type": "mirror"})
    sql = "update mo_iscp_log set job_spec = :spec where job_name = 'broken'"
    for spec in ('{"type": "mirror", "from_the_future": 1}', "no json", "[]"):
        shop.execute(sql, spec=spec)
        assert asset_paths(build(shop)) == ["sys/shop/items", "sys/shop/items/copy"]


def test_a_table_that_is_away_keeps_its_assets_and_says_why(shop: Shop) -> None:
    path = shop.add_table()
    shop.register("copy", {"type": "mirror"})
    shutil.rmtree(path)
    definitions = build(shop)
    assert asset_paths(definitions) == ["sys/shop/items", "sys/shop/items/copy"]
    metadata = node_of(definitions, "sys/shop/items").metadata
    assert str(path) in metadata["iscp/unreadable"]
    assert "dagster/column_schema" not in metadata


def test_dropped_jobs_and_tables_are_no_assets(shop: Shop) -> None:
    shop.add_table()
    shop.add_table("shop.more")
    shop.register("copy", {"type": "mirror"})
    with shop.open_log() as log:
        log.jobs.unregister(TableKey.parse("shop.items").job("copy"), NOW)
        log.tables.drop(TableKey.parse("shop.more"), NOW)
    assert asset_paths(build(shop)) == ["sys/shop/items"]


def test_each_runner_shard_is_a_sensor(shop: Shop) -> None:
    definitions = build_definitions(settings_in(shop.home, ISCP_RUNNER_SHARDS="3"))
    Definitions.validate_loadable(definitions)
    names = [sensor.name for sensor in definitions.sensors or ()]
    assert names[:3] == ["iscp_runner_0", "iscp_runner_1", "iscp_runner_2"]
    assert len(set(names)) == len(names)


def test_the_definitions_are_as_they_were(shop: Shop) -> None:
    """`ISCP_UPDATE_SNAPSHOTS=1 pytest …` writes the snapshot anew; read the difference."""
    shop.add_table()
    shop.add_table("shop.orders-2026", account="acme")
    shop.register("copy", {"type": "mirror", "options": {"where": "price > 10"}})
    shop.register(
        "by-section",
        {
            **LOOKUP,
            "columns": ["name"],
            "description": "Items of a *section*.",
            "owners": ["team:data"],
            "trigger": {"kind": "periodic", "interval": "5m", "share": True},
        },
    )
    shop.register(
        "totals",
        {
            "type": "aggregate",
            "options": {"group_by": "section", "measures": "count,sum:price"},
            "trigger": {"kind": "greedy"},
        },
        table="shop.orders-2026",
        account="acme",
    )
    found = json.dumps(in_plain_words(build(shop)), indent=2, sort_keys=True, default=str)
    found = found.replace(str(shop.folder), "<folder>") + "\n"
    if os.environ.get(UPDATE):
        SNAPSHOT.parent.mkdir(exist_ok=True)
        SNAPSHOT.write_text(found, encoding="utf-8")
    assert found == SNAPSHOT.read_text(encoding="utf-8"), f"{UPDATE}=1 writes it anew"

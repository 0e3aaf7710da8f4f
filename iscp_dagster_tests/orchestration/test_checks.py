"""The checks of an index: green when it is as it should be, red when it is not."""

from __future__ import annotations

from typing import Any

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckSeverity,
    AssetKey,
    DagsterInstance,
)
from pyspark.sql import SparkSession

from iscp_dagster import api
from iscp_dagster.orchestration.checks import CHECKSUM, LAG, ROWS
from iscp_dagster.orchestration.sync import sync
from iscp_dagster.rules.model import Job
from iscp_dagster.spark.sql import quote_path_table
from iscp_dagster.stores.paths import index_uri
from iscp_dagster_tests.orchestration.house import House

pytestmark = pytest.mark.spark

GREEN = {LAG: True, ROWS: True, CHECKSUM: True}
SUMS = {"type": "aggregate", "options": {"group_by": "section", "measures": "count,max:id"}}


def test_an_index_that_was_never_synced_is_red(
    house: House, instance: DagsterInstance, spark: SparkSession
):
    house.table()
    house.register()
    found = check(house, instance, "look")
    assert passed(found) == {LAG: False, ROWS: False, CHECKSUM: False}
    assert "never synced" in str(found[LAG].metadata["iscp/reason"].value)
    assert found[ROWS].severity is AssetCheckSeverity.WARN


def test_an_idle_index_stays_green_one_that_is_behind_or_spoiled_turns_red(
    house: House, instance: DagsterInstance, spark: SparkSession
):
    house.table(rows=400)
    house.register("items", "look", lag_target="1ms")
    api.register_job("shop.items", "sums", SUMS, log=house.log)
    sync(house.settings, instance)
    # The last commit is older than the target: what counts is what the index does not hold.
    found = check(house, instance, "look")
    assert passed(found) == GREEN
    assert found[LAG].metadata["iscp/lag_seconds"].value == 0
    assert found[ROWS].metadata["iscp/rows_found"].value == 400
    assert 0 < number(found[CHECKSUM], "iscp/rows_sampled") < 100
    assert passed(check(house, instance, "sums")) == GREEN

    house.commit(rows=5)
    found = check(house, instance, "look")
    assert passed(found) == {LAG: False, ROWS: True, CHECKSUM: True}
    assert number(found[LAG], "iscp/lag_seconds") > number(found[LAG], "iscp/lag_target_seconds")
    assert passed(check(house, instance, "sums")) == GREEN

    sync(house.settings, instance)
    assert passed(check(house, instance, "look")) == GREEN
    place = quote_path_table(uri_of(house, house.job("items", "look")))
    spark.sql(f"update {place} set section = 'spoiled'")  # noqa: S608 - quoted
    assert passed(check(house, instance, "look")) == {LAG: True, ROWS: True, CHECKSUM: False}
    spark.sql(f"delete from {place} where id = 17")  # noqa: S608 - quoted
    found = check(house, instance, "look")
    assert passed(found) == {LAG: True, ROWS: False, CHECKSUM: False}
    assert found[ROWS].metadata["iscp/rows_expected"].value == 405
    assert found[ROWS].metadata["iscp/rows_found"].value == 404
    assert found[ROWS].severity is AssetCheckSeverity.ERROR
    assert passed(check(house, instance, "sums")) == GREEN


def check(house: House, instance: DagsterInstance, name: str) -> dict[str, AssetCheckEvaluation]:
    """Run the checks of one index, and nothing else."""
    key = AssetKey(house.job("items", name).key.asset_path)
    everything = house.definitions().resolve_implicit_global_asset_job_def()
    wanted = {AssetCheckKey(key, check) for check in GREEN}
    job = everything.get_subset(asset_selection=set(), asset_check_selection=wanted)
    result = job.execute_in_process(instance=instance)
    assert result.get_asset_materialization_events() == []
    return {found.check_name: found for found in result.get_asset_check_evaluations()}


def passed(found: dict[str, AssetCheckEvaluation]) -> dict[str, bool]:
    return {name: one.passed for name, one in found.items()}


def number(found: AssetCheckEvaluation, name: str) -> float:
    value: Any = found.metadata[name].value
    return value


def uri_of(house: House, job: Job) -> str:
    return index_uri(house.settings.warehouse, job.key, job.job_id)

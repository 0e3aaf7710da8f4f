"""The checks of an index: green when it is as it should be, red when it is not."""

from __future__ import annotations

import math
import random
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckSeverity,
    AssetKey,
    DagsterInstance,
)
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from iscp_dagster import api
from iscp_dagster.consumers.vector import read_recall_floor
from iscp_dagster.errors import UsageError
from iscp_dagster.maintenance.optimize import Span
from iscp_dagster.orchestration.checks import CHECKSUM, LAG, RECALL, ROWS
from iscp_dagster.orchestration.sync import sync
from iscp_dagster.rules.model import TS, Job, Window
from iscp_dagster.spark.sql import quote_path_table
from iscp_dagster.stores.lance_index import CONTROL, KEY, LanceIndex, Staged, open_dataset
from iscp_dagster.stores.lance_keys import canonical_keys
from iscp_dagster.stores.lance_segments import VectorRecipe, segments_of, write_recipes
from iscp_dagster.stores.paths import index_uri
from iscp_dagster_tests.orchestration.house import House, now

pytestmark = pytest.mark.spark

GREEN = {LAG: True, ROWS: True, CHECKSUM: True}
SUMS = {"type": "aggregate", "options": {"group_by": "section", "measures": "count,max:id"}}
WORDS = {"type": "fulltext", "columns": ["body"]}
NEAR = {"type": "vector", "columns": ["vec"], "options": {"metric": "l2"}}


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


def test_lance_indexes_are_compared_with_a_build_from_scratch(
    house: House, instance: DagsterInstance, spark: SparkSession
):
    rows = [{"id": i, "body": f"word{i} same", "vec": [float(i), 1.0]} for i in range(64)]
    rows += [
        {"id": 64, "body": None, "vec": [1.0]},
        {"id": 65, "body": "", "vec": [math.nan, 1.0]},
        {"id": 66, "body": "no vector", "vec": None},
    ]
    make_table(house, rows)
    api.register_job("shop.items", "words", WORDS, log=house.log)
    api.register_job("shop.items", "near", NEAR, log=house.log)
    sync(house.settings, instance)
    words, near = (check(house, instance, name, *GREEN) for name in ("words", "near"))
    assert passed(words) == passed(near) == GREEN
    assert words[ROWS].metadata["iscp/rows_found"].value == 65
    assert near[ROWS].metadata["iscp/rows_found"].value == 64
    assert near[ROWS].metadata["iscp/rows_refused"].value == 2
    assert 0 < number(near[CHECKSUM], "iscp/rows_sampled") < 20

    for name, spoil in (("words", {"body": "'spoiled'"}), ("near", {"id": "id + 1000"})):
        dataset = open_dataset(uri_of(house, house.job("items", name)))
        assert dataset is not None
        dataset.delete("id = 17")
        found = check(house, instance, name, ROWS)[ROWS]
        assert not found.passed
        assert number(found, "iscp/rows_expected") - number(found, "iscp/rows_found") == 1
        dataset.update(spoil, where="id > 40")
        assert not check(house, instance, name, CHECKSUM)[CHECKSUM].passed


def test_recall_is_red_when_vectors_left_what_was_learned_and_green_once_it_is_trained_anew(
    house: House, instance: DagsterInstance
):
    make_table(house, [{"id": 1, "body": "a", "vec": [1.0, 2.0]}])
    api.register_job("shop.items", "near", NEAR, log=house.log)
    api.register_job("shop.items", "words", WORDS, log=house.log)
    checks = house.definitions().resolve_asset_graph().asset_check_keys
    assert {key.asset_key.path[-1] for key in checks if key.name == RECALL} == {"near"}
    found = check(house, instance, "near", RECALL)[RECALL]
    assert (found.passed, found.severity) == (False, AssetCheckSeverity.WARN)
    assert "there is no index" in str(found.metadata["iscp/reason"].value)

    index = LanceIndex(uri_of(house, house.job("items", "near")), house.job("items", "near").job_id)
    recipe = outgrown_index(index)
    found = check(house, instance, "near", RECALL)[RECALL]
    assert not found.passed
    assert found.severity is AssetCheckSeverity.ERROR
    assert number(found, "iscp/recall") < 0.8 < number(found, "iscp/recall_floor") == 0.95
    assert number(found, "iscp/recall_queries") == 50
    assert "`iscp optimize shop.items near --retrain`" in str(found.metadata["iscp/reason"].value)

    report = api.optimize_job("shop.items", "near", retrain=True, log=house.log)
    assert report.segments == Span(2, 1)
    found = check(house, instance, "near", RECALL)[RECALL]
    assert found.passed
    assert number(found, "iscp/recall") >= 0.95
    dataset = open_dataset(index.uri)
    assert dataset is not None
    assert segments_of(dataset, recipe) == 1


def test_a_floor_of_one_s_own_is_checked_when_the_job_is_registered(house: House):
    make_table(house, [{"id": 1, "body": "a", "vec": [1.0, 2.0]}])
    for wrong in ("0", "1.5", "high"):
        options = {**NEAR["options"], "recall_floor": wrong}
        with pytest.raises(UsageError, match=f"recall_floor: '{wrong}' is not above 0"):
            api.register_job("shop.items", "near", {**NEAR, "options": options}, log=house.log)
    options = {**NEAR["options"], "recall_floor": "0.5"}
    api.register_job("shop.items", "near", {**NEAR, "options": options}, log=house.log)
    assert read_recall_floor(house.job("items", "near").spec) == 0.5


def make_table(house: House, rows: list[dict[str, Any]]) -> None:
    """Make and record a table with texts and vectors."""
    schema = pa.schema([("id", pa.int64()), ("body", pa.string()), ("vec", pa.list_(pa.float32()))])
    feed = {"delta.enableChangeDataFeed": "true"}
    path = house.path("items")
    write_deltalake(path, pa.Table.from_pylist(rows, schema=schema), configuration=feed)
    api.add_table("shop.items", uri=str(path), pk=["id"], log=house.log)


def outgrown_index(index: LanceIndex) -> VectorRecipe:
    """Fill an index as plain Lance would: trained on the first vectors, the others just added."""
    recipe = VectorRecipe("vector", flat_below=100)
    build = {
        "type": "vector",
        "key": ["id"],
        "stored": {"id": "id"},
        "content": ["vec"],
        "embedder": None,
        "where": None,
        "recipes": write_recipes([recipe]),
        "source": {},
    }
    payload = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), 8))])
    standing = index.create(payload, build)
    rng = random.Random(7)
    # Of the first ones but a few stay as they were.
    for version, (first, count, spread) in enumerate(((0, 400, 0.01), (5, 3000, 10.0))):
        ids = pa.array(range(first, first + count), pa.int64())
        flat = pa.array([rng.uniform(-spread, spread) for _ in range(count * 8)], pa.float32())
        keys = canonical_keys([ids])
        vectors = pa.FixedSizeListArray.from_arrays(flat, 8)
        schema = pa.schema([(KEY, pa.string()), (CONTROL, pa.string()), *payload])
        rows = pa.table([keys, pa.nulls(count, pa.string()), ids, vectors], schema=schema)
        window = Window(standing.watermark, TS(version, now()))
        standing = index.commit(
            standing, window, Staged(index.stage(rows), tuple(keys.to_pylist()))
        )
        dataset = open_dataset(index.uri)
        assert dataset is not None
        if version:
            dataset.optimize.optimize_indices(num_indices_to_merge=0, index_names=[recipe.name])
        else:
            recipe.build(dataset)
    return recipe


def check(
    house: House, instance: DagsterInstance, name: str, *checks: str
) -> dict[str, AssetCheckEvaluation]:
    """Run checks of one index, and nothing else; all that every index has by default."""
    key = AssetKey(house.job("items", name).key.asset_path)
    everything = house.definitions().resolve_implicit_global_asset_job_def()
    wanted = {AssetCheckKey(key, check) for check in checks or GREEN}
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

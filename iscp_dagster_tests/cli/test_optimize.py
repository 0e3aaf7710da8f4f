"""`iscp optimize`: what it does to an index, what it says, and what it leaves alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from iscp_dagster import api
from iscp_dagster.maintenance.compact import compact_indexes
from iscp_dagster.rules.model import Job
from iscp_dagster.search import search
from iscp_dagster.spark.sql import quote_path_table
from iscp_dagster.stores.lance_index import LanceIndex
from iscp_dagster.stores.paths import index_uri
from iscp_dagster_tests.cli.conftest import Iscp, assert_one_line
from iscp_dagster_tests.iteration.works import meanwhile
from iscp_dagster_tests.search.library import SPECS, Library, item, library

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["library"]
pytestmark = pytest.mark.spark

ALL = 1000


@pytest.fixture
def optimize(iscp: Iscp, library: Library, monkeypatch: pytest.MonkeyPatch) -> Iscp:
    """Optimizes an index of the library."""
    monkeypatch.setenv("ISCP_HOME", str(library.settings.home))
    return lambda *arguments: iscp("optimize", "shop.items", *arguments)


def job_of(library: Library, name: str) -> Job:
    with library.open_log() as log:
        return api.get_job("shop.items", name, log=log)


def uri_of(library: Library, name: str) -> str:
    job = job_of(library, name)
    return index_uri(library.settings.warehouse, job.key, job.job_id)


def test_a_text_index_becomes_one_segment_while_a_window_is_applied(
    optimize: Iscp, library: Library, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (100, 101):
        library.add(item(number, Title="zebra crossing"))
        library.sync(spark, "words")
    before = search("shop.items", "words", "red zebra", k=ALL)
    library.add(item(102, Title="another zebra"))
    library.delete("id = 100")
    monkeypatch.setenv("ISCP_FAULT", "pause@before_commit:words")
    with meanwhile(lambda: library.sync(spark, "words"), "before_commit:words"):
        reader = LanceIndex.open(uri_of(library, "words"))
        done = optimize("words", "--json")
        during = search("shop.items", "words", "red zebra", k=ALL)
        monkeypatch.delenv("ISCP_FAULT")
    assert (done.code, done.err) == (0, "")
    told = done.json
    assert (told["job"], told["type"], told["contended"]) == (
        "sys/shop/items/words", "fulltext", False,
    )  # fmt: skip
    assert told["segments"]["before"] > told["segments"]["after"] == 1
    assert told["fragments"]["before"] > told["fragments"]["after"] == 2
    assert told["bytes"]["before"] > told["bytes"]["after"] > 0
    assert told["seconds"] > 0
    assert (during.watermark, during.store_version) == (before.watermark, told["store_version"])
    assert {str(hit["key"]) for hit in during.hits()} == {str(hit["key"]) for hit in before.hits()}
    assert reader.text_search("zebra", ALL).num_rows == 2
    after = search("shop.items", "words", "zebra", k=ALL)
    assert after.watermark == library.head
    assert {hit["key"]["id"] for hit in after.hits()} == {101, 102}


def test_people_see_the_steps_and_one_closing_line(optimize: Iscp) -> None:
    done = optimize("words", "--retrain")
    assert done.code == 0
    assert done.err.splitlines() == [
        "building c2_fts anew",
        "putting c2_fts in place",
        "compacting fragments",
        "removing old versions",
    ]
    assert re.fullmatch(
        r"sys/shop/items/words: segments 1 → 1, fragments 2 → 2, "
        r"\d+\.\d kB → \d+\.\d kB in \d+\.\d s\n",
        done.out,
    )


def test_a_delta_index_gets_few_files_and_goes_on(
    optimize: Iscp, library: Library, spark: SparkSession
) -> None:
    library.add(item(100))
    library.update({"size": "size + 1"}, "id % 2 = 0")
    library.sync(spark, "look")
    before = search("shop.items", "look", k=ALL)
    uri = uri_of(library, "look")
    rows = spark.read.format("delta").load(uri).repartition(4)
    rows.write.format("delta").mode("overwrite").option("dataChange", "false").save(uri)
    told = optimize("look", "--json").json
    assert (told["segments"], told["fragments"]) == (None, {"before": 4, "after": 1})
    assert told["store_version"] == DeltaTable(uri).version()
    after = search("shop.items", "look", k=ALL)
    assert (after.table.to_pylist(), after.watermark) == (before.table.to_pylist(), library.head)
    assert optimize("look", "--json").json["store_version"] == told["store_version"]
    place = quote_path_table(uri)
    spark.sql(
        f"merge into {place} t using (select 3L as id, 77 as size) s on t.id = s.id "
        "when matched then update set t.size = s.size"
    )
    assert [hit["size"] for hit in search("shop.items", "look", "id=3").hits()] == [77]

    library.update({"size": "size - 1"}, "id = 3")
    library.delete("id = 100")
    library.sync(spark, "look")
    expected = {(row["id"], row["size"]) for row in library.rows()}
    found = spark.read.format("delta").load(uri).select("id", "size").collect()
    assert {tuple(row) for row in found} == expected
    hits = search("shop.items", "look", k=ALL).hits()
    assert {(hit["key"]["id"], hit["size"]) for hit in hits} == expected


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("look", "--retrain"), 2, "retrain: sys/shop/items/look is a lookup index"),
        (("nope",), 2, "sys/shop/items/nope is not in the log"),
        (("new",), 1, "sys/shop/items/new is still building"),
        (("sums2",), 1, "sys/shop/items/sums2 is still building"),
    ],
)
def test_what_cannot_be_optimized_is_one_line(
    optimize: Iscp, library: Library, arguments: tuple[str, ...], code: int, says: str
) -> None:
    library.register("new", SPECS["words"])
    library.register("sums2", SPECS["sums"])
    done = optimize(*arguments)
    assert_one_line(done)
    assert (done.code, says in done.err) == (code, True), done.err


def test_an_index_whose_files_are_gone_fails_in_one_line(optimize: Iscp, library: Library) -> None:
    for file in Path(uri_of(library, "words")).glob("data/*.lance"):
        file.unlink()
    done = optimize("words", "--retrain", "--json")
    assert_one_line(done)
    assert done.code == 1
    assert "sys/shop/items/words can't be put in order" in done.err


def test_the_nightly_round_leaves_no_index_out_and_names_the_broken_one(library: Library) -> None:
    library.register("new", SPECS["words"])
    for file in Path(uri_of(library, "words")).glob("data/*.lance"):
        file.unlink()
    told: list[str] = []
    with library.open_log() as log:
        report = compact_indexes(log, library.settings, told.append)
    assert {one.job.rpartition("/")[2] for one in report.done} == SPECS.keys() - {"words"}
    assert told == [str(one) for one in report.done]
    (failed,) = report.failed
    assert "sys/shop/items/words can't be put in order" in failed
    assert str(report).startswith("4 indexes in order\nnot in order: sys/shop/items/words")

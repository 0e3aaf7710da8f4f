"""Several indexes in one search: ranks put together by the book, all at one version."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from iscp_dagster import api
from iscp_dagster.errors import IndexBuilding, IndexUnreadable, NoCommonVersion, UsageError
from iscp_dagster.rules.model import JobState, JobStatus
from iscp_dagster.search import SearchResult, search
from iscp_dagster.search.hybrid import fuse
from iscp_dagster.stores.lance_index import open_dataset
from iscp_dagster.stores.paths import index_uri
from iscp_dagster_tests.search.library import SPECS, Library, item

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = 1000
NEAR = {"query": "red car", "vector": [1.0, 1.0, -0.5]}


def ask(jobs: str | list[str], query: str | None = None, **more: Any) -> SearchResult:
    return search("shop.items", jobs, query, **more)


def keys(result: SearchResult) -> list[str]:
    return [json.dumps(hit["key"]) for hit in result.hits()]


def uri_of(library: Library, name: str) -> str:
    with library.open_log() as log:
        job = api.get_job("shop.items", name, log=log)
    return index_uri(library.settings.warehouse, job.key, job.job_id)


def test_ranks_add_up_by_their_reciprocals_and_ties_order_by_key() -> None:
    assert fuse([["b", "a"], ["a", "b"], ["c"]]) == [
        ("a", 1 / 62 + 1 / 61),
        ("b", 1 / 61 + 1 / 62),
        ("c", 1 / 61),
    ]
    assert fuse([[], []]) == []


@pytest.mark.spark
def test_words_and_meaning_make_one_ranking_by_the_book(library: Library) -> None:
    words, near = ask("words", "red car", k=100), ask("near", vector=NEAR["vector"], k=100)
    scores: dict[str, float] = {}
    for ranking in (keys(words), keys(near)):
        for place, key in enumerate(ranking):
            scores[key] = scores.get(key, 0) + 1 / (60 + place + 1)
    found = ask("words,near", **NEAR, k=ALL)
    assert dict(zip(keys(found), found.table["score"].to_pylist(), strict=True)) == scores
    ranked = found.table["score"].to_pylist()
    assert ranked == sorted(ranked, reverse=True)
    assert keys(ask(["near", "words"], **NEAR, k=4)) == keys(found)[:4]
    assert 0 < len(keys(words)) < len(scores)
    assert found.store_versions == {
        "words": words.store_version,
        "near": near.store_version,
    }


@pytest.mark.spark
def test_a_text_is_asked_of_words_and_of_meaning(library: Library) -> None:
    pytest.importorskip("tokenizers")
    titles = [hit["Title"] for hit in ask("words,like", "red automobile", k=3).hits()]
    assert set(titles) == {"the quick red automobile"}
    only_words = set(keys(ask("words", "red automobile", k=ALL)))
    assert set(keys(ask("words,like", "red automobile", k=ALL))) > only_words


@pytest.mark.spark
def test_a_hit_of_one_index_has_the_columns_of_the_others_too(library: Library) -> None:
    found = ask("words,near", "red", vector=[0.0, 1.0, 0.0], k=ALL)
    assert found.table.column_names == [
        "region", "id", "score", "Title", "section", "score_", "key_",
    ]  # fmt: skip
    rows = {(row["region"], row["id"]): row for row in library.rows()}
    for hit in found.table.to_pylist():
        row = rows[hit["region"], hit["id"]]
        assert hit["section"] == row["section"]
        if row["Title"]:  # a row without a text is in the index of vectors only
            assert (hit["Title"], hit["key_"]) == (row["Title"], row["key"])
    narrow = ask("words,near", "red", vector=[0.0, 1.0, 0.0], columns=["Title"], k=3)
    assert narrow.table.column_names == ["region", "id", "score", "Title"]
    assert narrow.table["Title"].to_pylist() == found.table["Title"].to_pylist()[:3]


@pytest.mark.spark
def test_a_filter_holds_for_every_index(library: Library) -> None:
    found = ask("words,near", **NEAR, where="section = 'it''s'", k=ALL)
    expected = {
        row["id"]
        for row in library.rows()
        if row["section"] == "it's"
        and (row["vec"] is not None or {"red", "car"} & set((row["Title"] or "").split()))
    }
    assert {hit["key"]["id"] for hit in found.hits()} == expected
    nothing = ask("words,near", **NEAR, where="section = 'nope'")
    assert (nothing.table.num_rows, nothing.watermark) == (0, library.head)
    assert nothing.table.schema == found.table.schema
    with pytest.raises(UsageError, match=r"where: .*section.*\(like\)"):
        ask("words,like", "red", where="section = 'editors'")


@pytest.mark.spark
def test_an_index_that_is_ahead_is_asked_as_it_was(library: Library, spark: SparkSession) -> None:
    before = ask("words,near", **NEAR, k=ALL)
    then = library.head
    library.add(item(100, Title="red red red car", vec=[1.0, 1.0, -0.5]))
    library.delete("id = 10")
    library.sync(spark, "words")
    library.add(item(101, Title="red car"))
    library.sync(spark, "words")
    assert ask("words", "red").watermark == library.head
    behind = ask("words,near", **NEAR, k=ALL)
    assert (behind.watermark, behind.version) == (then, 0)
    assert behind.table.equals(before.table)
    assert behind.lag_seconds

    fresh = ask("words,near", **NEAR, k=ALL, fresh=True)
    assert (fresh.watermark, fresh.fresh, fresh.lag_seconds) == (library.head, True, 0.0)
    library.sync(spark, "near")
    synced = ask("words,near", **NEAR, k=ALL)
    assert synced.watermark == library.head
    assert set(keys(synced)) == set(keys(fresh))
    assert keys(synced)[0] == keys(fresh)[0]
    assert synced.hits()[0]["key"]["id"] == 100
    assert 10 not in {hit["key"]["id"] for hit in synced.hits()}


@pytest.mark.spark
def test_indexes_without_a_common_version_are_refused_with_the_cure(
    library: Library, spark: SparkSession
) -> None:
    library.add(item(100, Title="red car", vec=NEAR["vector"]))
    library.sync(spark, "words")
    dataset = open_dataset(uri_of(library, "words"))
    assert dataset is not None
    dataset.cleanup_old_versions(older_than=timedelta(0))
    with pytest.raises(NoCommonVersion, match=r"words at v1, near at v0\).*fresh.*iscp sync"):
        ask("words,near", **NEAR)
    assert ask("words,near", **NEAR, fresh=True, k=1).hits()[0]["key"]["id"] == 100


@pytest.mark.spark
def test_commits_that_change_no_data_keep_indexes_together(
    library: Library, spark: SparkSession
) -> None:
    found = ask("words,near", **NEAR)
    library.add(item(100, Title="red car"))
    library.sync(spark, "words", "near")
    DeltaTable(library.source).optimize.compact()
    library.sync(spark, "near")
    together = ask("words,near", **NEAR)
    assert (together.watermark, together.lag_seconds) == (library.head, 0.0)
    assert together.version == 2
    assert together.store_versions["words"] == ask("words", "red").store_version
    assert together.version > found.version


@pytest.mark.spark
@pytest.mark.parametrize(
    ("jobs", "question", "says"),
    [
        ("words,look", {"query": "red"}, "search: .*/look is a lookup index and ranks nothing"),
        ("words,words", {"query": "red"}, "job: an index is named twice in words,words"),
        ("words,", {"query": "red"}, "job"),
        ([], {"query": "red"}, "job: missing"),
        ("words,nope", {"query": "red"}, "job sys/shop/items/nope"),
        ("words,near", {"vector": [0.0, 1.0, 0.0]}, r"query: missing \(words\); say which words"),
        ("words,near", {"query": "red"}, r"come from column 'vec'.* \(near\)"),
        ("words,near", {"query": "red", "vector": [1.0]}, r"has 1 numbers.* \(near\)"),
        ("words,near", {**NEAR, "columns": ["size"]}, "columns: none of the indexes has 'size'"),
    ],
)
def test_questions_that_do_not_fit_are_refused(
    library: Library, jobs: str | list[str], question: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        ask(jobs, **question)
    assert "\n" not in str(refused.value)


@pytest.mark.spark
def test_one_index_that_cannot_answer_is_named(library: Library) -> None:
    library.set("near", state=JobState.ERROR, status=JobStatus(error_code=10_033, error_msg="bad"))
    assert ask("words,near", **NEAR).error == "near: bad (10033)"
    library.register("new", SPECS["near"])
    with pytest.raises(IndexBuilding, match="sys/shop/items/new is still building"):
        ask("words,new", **NEAR)


@pytest.mark.spark
@pytest.mark.parametrize("job", ["words", "look", "words,near"])
def test_files_that_are_gone_are_no_fault_of_the_question(library: Library, job: str) -> None:
    name = job.partition(",")[0]
    for pattern in ("data/*.lance", "*.parquet"):
        for file in Path(uri_of(library, name)).glob(pattern):
            file.unlink()
    with pytest.raises(IndexUnreadable, match="can't be read"):
        ask(job, "red" if name == "words" else None, vector=NEAR["vector"] if "," in job else None)

"""`fresh=True`: what an index would answer if it were synced first."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from iscp_dagster import api
from iscp_dagster.errors import SourceTableReplaced, TailUnavailable
from iscp_dagster.search import SearchResult, search
from iscp_dagster.search.fresh_lance import check_clonable
from iscp_dagster_tests.joblog.databases import execute
from iscp_dagster_tests.search.library import SECTIONS, SPECS, TITLES, Library, item

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("words", {"query": "red", "k": 1000}),
    ("words", {"query": "red car zebra", "k": 1000}),
    ("words", {"query": '"quick red"', "k": 1000}),
    ("words", {"query": "planetz~1 -zebra", "k": 1000}),
    ("words", {"query": "zebra", "where": "section IS NULL", "k": 1000}),
    ("near", {"vector": [1.0, 1.0, -0.5], "k": 5}),
    ("near", {"vector": [0.0, 0.0, 9.0], "k": 1000, "where": "section = 'editors'"}),
    ("like", {"query": "speedy vehicle", "k": 6}),
    ("like", {"query": "striped animal", "k": 1000}),
    ("look", {"k": 1000}),
    ("look", {"k": 5}),
    ("look", {"query": "editors", "k": 3, "columns": ["size"]}),
    ("look", {"query": "size=3", "k": 1000}),
    ("look", {"where": "Title LIKE '%zebra%' OR price > 5", "k": 1000, "columns": ["price"]}),
    ("sums", {"k": 1000}),
    ("sums", {"query": "it's"}),
    ("sums", {"where": "avg_price > 4 OR count < 3", "k": 2}),
]


def churn(library: Library, rng: random.Random, first: int) -> None:
    """Change the table in every way, in several commits; some rows more than once."""
    titles = [*TITLES, "a zebra crossing", "zebra and planets"]
    for number in range(first, first + 6):
        title, section = rng.choice(titles), rng.choice([*SECTIONS, "new's"])
        vec = rng.choice([None, [rng.uniform(-2, 2) for _ in range(3)]])
        library.add(item(number, Title=title, section=section, vec=vec))
    rest = rng.randrange(5)
    library.update({"Title": "'the zebra''s red car'"}, f"id % 5 = {rest}")
    library.update({"Title": "NULL", "vec": "NULL"}, f"id % 7 = {rest}")
    library.update({"section": "'editors'", "price": "price + 1.25"}, f"id % 6 = {rest}")
    library.delete(f"id % 8 = {rest}")
    library.update({"id": "id + 1000"}, f"id % 9 = {rest} and id < 1000")
    library.add(item(rest * 8 + 2000), item(first + 3000, section=None))
    library.delete(f"id = {first + 3000}")
    library.add(item(first + 3000, section="it's", Title="red again"))
    DeltaTable(library.source).optimize.compact()
    library.update({"size": "size + 1"}, "section = 'text editors'")


def answers(**more: Any) -> list[SearchResult]:
    return [search("shop.items", job, **question, **more) for job, question in QUESTIONS]


def test_a_fresh_answer_is_that_of_an_index_synced_first(
    library: Library, spark: SparkSession
) -> None:
    churn(library, random.Random(1), 100)
    before, fresh = answers(), answers(fresh=True)
    head = library.head
    library.sync(spark)
    for question, old, new, true in zip(QUESTIONS, before, fresh, answers(), strict=True):
        assert old.watermark < head, question
        assert (new.watermark, str(new.watermark)) == (head, str(head)), question
        assert (new.fresh, new.lag_seconds) == (True, 0.0), question
        assert new.store_version == old.store_version, question
        assert_same(question[0], new, true)
    assert any(not old.table.equals(new.table) for old, new in zip(before, fresh, strict=True))


def assert_same(job: str, fresh: SearchResult, synced: SearchResult) -> None:
    found, expected = fresh.hits(), synced.hits()
    assert fresh.table.schema == synced.table.schema
    if job in ("look", "sums"):
        assert found == expected
    elif job == "words":
        assert_same_words(found, expected)
    else:
        assert scores(found) == pytest.approx(scores(expected), abs=1e-5)
        assert not expected or above_the_last(found) == above_the_last(expected)


def assert_same_words(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """The same rows match; the ten best, ties aside, are the ten best."""
    true = {str(hit["key"]): hit["score"] for hit in expected}
    assert {str(hit["key"]) for hit in found} == set(true)
    if found:
        tenth = scores(expected[:10])[-1] - 1e-5
        best = [true[str(hit["key"])] >= tenth for hit in found[:10]]
        assert sum(best) / len(best) >= 0.98


def above_the_last(hits: list[dict[str, Any]]) -> set[str]:
    """The keys whose place among the first k is no matter of ties."""
    last = scores(hits)[-1] + 1e-5
    return {str(hit["key"]) for hit in hits if hit["score"] > last}


def scores(hits: list[dict[str, Any]]) -> list[float]:
    return [hit["score"] for hit in hits]


@pytest.mark.parametrize("job", SPECS)
def test_an_index_that_is_up_to_date_answers_the_same_fresh(library: Library, job: str) -> None:
    question = next(question for name, question in QUESTIONS if name == job)
    plain = search("shop.items", job, **question)
    fresh = search("shop.items", job, **question, fresh=True)
    assert fresh.table.equals(plain.table)
    assert (fresh.fresh, plain.fresh, fresh.watermark) == (True, False, plain.watermark)


def test_a_fresh_search_leaves_the_index_as_it_was(library: Library) -> None:
    library.add(item(100, Title="zebra"))
    before = sorted(str(path) for path in (library.folder / "home" / "warehouse").rglob("*"))
    assert search("shop.items", "words", "zebra", fresh=True).table.num_rows == 1
    assert search("shop.items", "words", "zebra").table.num_rows == 0
    after = sorted(str(path) for path in (library.folder / "home" / "warehouse").rglob("*"))
    assert after == before


def test_an_index_in_an_object_store_is_never_cloned_into_it(library: Library) -> None:
    with library.open_log() as log:
        job = api.get_job("shop.items", "words", log=log)
    check_clonable(job, "/data/index")
    with pytest.raises(TailUnavailable, match="items/words: only an index on local disk"):
        check_clonable(job, "s3://lake/index")


def test_changes_that_are_gone_are_told_and_never_left_out(library: Library) -> None:
    library.update({"size": "size + 1"}, "id < 5")
    for folder in (library.folder / "items").glob("_change_data"):
        for path in folder.iterdir():
            path.unlink()
    with pytest.raises(TailUnavailable, match=r"can't be read .*; search without fresh"):
        search("shop.items", "look", fresh=True)
    assert search("shop.items", "look").table.num_rows


def test_history_that_was_cleaned_up_is_told(library: Library) -> None:
    for number in range(100, 103):
        library.add(item(number))
    table = DeltaTable(library.source)
    table.create_checkpoint()
    for version in (0, 1):
        (library.folder / "items" / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(TailUnavailable):
        search("shop.items", "words", "red", fresh=True)


def test_another_table_in_its_place_is_no_tail(library: Library) -> None:
    execute(library.settings.log_url, "update iscp_tables set delta_id = 'other'")
    with pytest.raises(SourceTableReplaced):
        search("shop.items", "look", fresh=True)

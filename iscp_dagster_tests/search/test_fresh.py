"""`fresh=True`: what an index would answer if it were synced first."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from iscp_dagster.errors import SourceTableReplaced, TailUnavailable
from iscp_dagster.search import SearchResult, search
from iscp_dagster_tests.joblog.databases import execute
from iscp_dagster_tests.search import oracle
from iscp_dagster_tests.search.library import SECTIONS, SPECS, TITLES, Library, item

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ALL = 1000
INSIDE = {"type": "fulltext", "columns": ["key:$.words[0]"]}
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("words", {"query": "red", "k": ALL}),
    ("words", {"query": "red car zebra", "k": ALL}),
    ("words", {"query": '"quick red"', "k": ALL}),
    ("words", {"query": "planetz~1 -zebra", "k": ALL}),
    ("words", {"query": "zebra", "where": "section IS NULL", "k": ALL}),
    ("inside", {"query": "zebra", "k": ALL}),
    ("near", {"vector": [1.0, 1.0, -0.5], "k": 5}),
    ("near", {"vector": [0.0, 0.0, 9.0], "k": ALL, "where": "section = 'editors'"}),
    ("like", {"query": "speedy vehicle", "k": 6}),
    ("like", {"query": "striped animal", "k": ALL}),
    ("look", {"k": ALL}),
    ("look", {"k": 5}),
    ("look", {"query": "editors", "k": 3, "columns": ["size"]}),
    ("look", {"query": "size=3", "k": ALL}),
    ("look", {"where": "Title LIKE '%zebra%' OR price > 5", "k": ALL, "columns": ["price"]}),
    ("sums", {"k": ALL}),
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


def nudge(library: Library, rng: random.Random) -> None:
    """Change the table in one way or another, in one commit."""
    number, rest = rng.randrange(10_000, 99_999), rng.randrange(7)
    title = rng.choice([*TITLES, "a zebra crossing", "red zebra"])
    vec = rng.choice([None, [rng.uniform(-2, 2) for _ in range(3)]])
    ways: list[Callable[[], object]] = [
        lambda: library.add(item(number, Title=title, vec=vec), item(number + 1)),
        lambda: library.update({"Title": "'zebra, red'", "size": "size + 1"}, f"id % 7 = {rest}"),
        lambda: library.update({"Title": "Title"}, f"id % 3 = {rest}"),
        lambda: library.update({"vec": "NULL", "Title": "NULL"}, f"id % 7 = {rest}"),
        lambda: library.update({"section": "'it''s'", "price": "price + 1"}, f"id % 5 = {rest}"),
        lambda: library.update({"id": "id + 100000"}, f"id % 11 = {rest} and id < 100000"),
        lambda: library.delete(f"id % 9 = {rest}"),
        lambda: DeltaTable(library.source).optimize.compact(),
    ]
    rng.choice(ways)()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fresh_answers_follow_the_table_through_any_history(library: Library, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        for _ in range(rng.randint(1, 3)):
            nudge(library, rng)
        rows = library.rows()
        for query in ("red", "zebra car", "planets"):
            assert found("words", query) == oracle.matching(rows, query)
        vector = [rng.uniform(-2, 2) for _ in range(3)]
        near = scores(ask("near", vector=vector, k=5).hits())
        assert near == pytest.approx(oracle.nearest(rows, vector, 5), abs=1e-4)
        like = scores(ask("like", "striped animal", k=6).hits())
        assert like == pytest.approx(oracle.alike(rows, "striped animal", 6), abs=1e-4)
        columns = ("region", "id", "Title", "size", "price")
        looked = ask("look", k=9).table.to_pylist()
        assert [tuple(row[name] for name in columns) for row in looked] == oracle.looked_up(rows, 9)
        columns = ("count", "sum_size", "min_price", "max_price", "count_Title")
        groups = ask("sums", k=ALL).table.to_pylist()
        assert {row["section"]: tuple(row[name] for name in columns) for row in groups} == (
            oracle.summed(rows)
        )
        assert ask("look", k=1).watermark == library.head


def ask(job: str, query: str | None = None, **more: Any) -> SearchResult:
    return search("shop.items", job, query, fresh=True, **more)


def found(job: str, query: str) -> set[tuple[str, int]]:
    keys = (hit["key"] for hit in ask(job, query, k=ALL).hits())
    return {(key["region"], key["id"]) for key in keys}


def answers(**more: Any) -> list[SearchResult]:
    return [search("shop.items", job, **question, **more) for job, question in QUESTIONS]


def test_a_fresh_answer_is_that_of_an_index_synced_first(
    library: Library, spark: SparkSession
) -> None:
    library.register("inside", INSIDE)
    library.sync(spark, "inside")
    churn(library, random.Random(1), 100)
    answers(fresh=True)
    churn(library, random.Random(2), 200)
    document = '{"words": ["zebra \\"one\\"", 2]}'
    library.add(item(500, key=document), item(501, key='{"words": []}'), item(502, key=document))
    library.update({"key": '\'{"words": ["lion"]}\''}, "id = 502")
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
    assert found("inside", "zebra") == {("eu", 500)}


def assert_same(job: str, fresh: SearchResult, synced: SearchResult) -> None:
    found, expected = fresh.hits(), synced.hits()
    assert fresh.table.schema == synced.table.schema
    if job in ("look", "sums"):
        assert found == expected
    elif job in ("words", "inside"):
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

"""`search`: what each kind of index answers, and what it says about itself."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from iscp_dagster import api
from iscp_dagster.errors import (
    IndexBuilding,
    IndexDropped,
    JobInError,
    UnknownJob,
    UnknownTable,
    UsageError,
)
from iscp_dagster.rules.model import TS, JobState, JobStatus
from iscp_dagster.search import SearchResult, search
from iscp_dagster.stores.delta_index import DeltaIndex
from iscp_dagster.stores.lance_index import LanceIndex
from iscp_dagster.stores.paths import index_uri
from iscp_dagster_tests.search.library import SPECS, Library, ids, item

pytestmark = pytest.mark.spark

ALL = 1000
FIRST = {"words": "red", "near": None, "like": "car", "look": None, "sums": None}


def ask(job: str, query: str | None = None, **more: Any) -> SearchResult:
    return search("shop.items", job, query, **more)


def ask_any(job: str, **more: Any) -> SearchResult:
    """Ask an index of any kind for something."""
    vector = [0.0, 1.0, 0.0] if job == "near" else None
    return ask(job, FIRST[job], vector=vector, **more)


def test_words_are_found_best_first(library: Library) -> None:
    result = ask("words", "red", k=ALL)
    expected = {row["id"] for row in library.rows() if "red" in (row["Title"] or "")}
    assert set(ids(result.hits())) == expected
    scores = result.table["score"].to_pylist()
    assert scores == sorted(scores, reverse=True)
    best = result.hits()[0]
    assert best["Title"] == "red red wine"
    assert best["score"] > 0


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("+red +car", {"it's a \"red\" car, isn't it"}),
        ("red -car -automobile", {"red red wine"}),
        ('"quick red"', {"the quick red automobile"}),
        ("planetz~1", {"stars and planets"}),
    ],
)
def test_queries_say_what_must_and_must_not_occur(
    library: Library, query: str, titles: set[str]
) -> None:
    assert {hit["Title"] for hit in ask("words", query, k=ALL).hits()} == titles


def test_a_filter_and_columns_narrow_what_words_find(library: Library) -> None:
    result = ask("words", "red", k=ALL, where="Section = 'it''s'", columns=["section"])
    expected = {
        row["id"]
        for row in library.rows()
        if "red" in (row["Title"] or "") and row["section"] == "it's"
    }
    assert set(ids(result.hits())) == expected
    assert result.table.column_names == ["region", "id", "score", "section"]


def test_columns_called_like_parts_of_a_hit_step_aside(library: Library) -> None:
    (hit,) = ask("words", "bread", k=1).hits()
    number = hit["key"]["id"]
    assert hit["key"] == {"region": item(number)["region"], "id": number}
    assert (hit["score_"], hit["key_"]) == (number / 2, f"k{number}")
    assert hit["score"] != hit["score_"]


def test_the_nearest_vectors_are_found(library: Library) -> None:
    query = [1.0, 1.0, -0.5]
    near = {
        row["id"]: -math.dist(query, row["vec"]) for row in library.rows() if row["vec"] is not None
    }
    result = ask("near", vector=query, k=5)
    best = sorted(near, key=lambda number: (-near[number], number))[:5]
    assert ids(result.hits())[0] == best[0] == 10
    assert result.table["score"].to_pylist() == pytest.approx([near[n] for n in best], abs=1e-5)


def test_a_text_finds_texts_of_like_meaning(library: Library) -> None:
    pytest.importorskip("tokenizers")
    found = {hit["Title"] for hit in ask("like", "speedy vehicle", k=6).hits()}
    assert found == {"a fast car", "the quick red automobile"}


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        ("section=editors", lambda row: row["section"] == "editors"),
        ("text editors", lambda row: row["section"] == "text editors"),
        (
            "Section='text editors' size=3",
            lambda r: (r["section"], r["size"]) == ("text editors", 3),
        ),
        ('section="it\'s"', lambda row: row["section"] == "it's"),
        ("it's", lambda row: row["section"] == "it's"),
        ("price=0.37", lambda row: row["price"] == Decimal("0.37")),
        ("id=3", lambda row: row["id"] == 3),
        ("score=2.5", lambda row: row["score"] == 2.5),
        ("at=2026-01-04T12:00:00.123456Z", lambda row: row["id"] == 3),
        ("section=", lambda row: row["section"] == ""),
    ],
)
def test_a_lookup_finds_rows_by_values(library: Library, query: str, fits: Any) -> None:
    expected = [row["id"] for row in library.rows() if fits(row)]
    result = ask("look", query, k=ALL)
    assert sorted(ids(result.hits())) == sorted(expected)
    for hit in result.hits():
        assert hit["Title"] == item(hit["key"]["id"])["Title"]


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        ("section IS NULL AND size > 2", lambda r: r["section"] is None and r["size"] > 2),
        ("price BETWEEN 1.11 AND 2.22", lambda r: Decimal("1.11") <= r["price"] <= Decimal("2.22")),
        ("Title LIKE '%it''s%'", lambda r: "it's" in (r["Title"] or "")),
        ("size / 2 = 1.5", lambda r: r["size"] == 3),
        ("at < TIMESTAMP '2026-01-03 00:00:00'", lambda r: r["id"] < 2),
        (
            "lower(region) = 'us' OR section <=> NULL",
            lambda r: r["region"] == "us" or not r["section"],
        ),
    ],
)
def test_a_lookup_finds_rows_by_a_filter(library: Library, where: str, fits: Any) -> None:
    expected = [row["id"] for row in library.rows() if fits(row)]
    assert expected
    assert sorted(ids(ask("look", where=where, k=ALL).hits())) == sorted(expected)


def test_a_lookup_is_sorted_and_ends_after_k_rows(library: Library) -> None:
    rows = ask("look", k=ALL).table.to_pylist()
    order = [(row["section"] or "", row["region"], row["id"]) for row in rows]
    assert order == sorted(order)
    assert ask("look", k=7).table.to_pylist() == rows[:7]
    assert "score" not in ask("look", k=1, columns=["size"]).table.column_names


def test_an_aggregate_answers_groups_and_hides_its_bookkeeping(library: Library) -> None:
    result = ask("sums", k=ALL)
    counted = Counter(row["section"] for row in library.rows() if row["id"] != 23)
    assert {hit["key"]["section"]: hit["count"] for hit in result.hits()} == counted
    assert not [name for name in result.table.column_names if name.startswith("_")]
    (one,) = ask("sums", "it's", columns=["sum_size"]).hits()
    sizes = [row["size"] for row in library.rows() if row["section"] == "it's"]
    assert one == {"key": {"section": "it's"}, "score": None, "sum_size": sum(sizes)}
    large = ask("sums", where="count > 4 AND section IS NOT NULL").hits()
    assert {hit["key"]["section"] for hit in large} == {"editors", "it's", "text editors"}


@pytest.mark.parametrize("job", SPECS)
def test_every_answer_says_where_it_is_true_and_how_far_behind(library: Library, job: str) -> None:
    head = library.head
    result = ask_any(job, k=3)
    assert (result.watermark, str(result.watermark)) == (head, str(head))
    assert (result.version, result.fresh, result.error) == (0, False, None)
    assert result.lag_seconds == 0.0
    library.add(item(100))
    before = datetime.now(UTC)
    behind = ask_any(job, k=3)
    assert behind.watermark == head
    assert behind.table.equals(result.table)
    assert behind.lag_seconds is not None
    assert behind.lag_seconds >= (before - library.head.time).total_seconds()


@pytest.mark.parametrize("job", ["words", "look"])
def test_the_store_is_believed_and_not_the_log(library: Library, job: str) -> None:
    head = library.head
    library.set(job, watermark=TS(7, head.time))
    assert ask_any(job).watermark == head


def test_the_version_that_was_asked_is_named(library: Library) -> None:
    with library.open_log() as log:
        jobs = {name: api.get_job("shop.items", name, log=log) for name in ("words", "look")}
    uris = {n: index_uri(library.settings.warehouse, j.key, j.job_id) for n, j in jobs.items()}
    assert ask("words", "red").store_version == LanceIndex.open(uris["words"]).version
    standing = DeltaIndex(uris["look"], jobs["look"].job_id).standing()
    assert standing is not None
    assert ask("look").store_version == standing.version


@pytest.mark.parametrize("job", SPECS)
def test_an_index_in_error_still_answers_and_says_so(library: Library, job: str) -> None:
    library.set(job, state=JobState.ERROR, status=JobStatus(error_code=10_033, error_msg="gone"))
    result = ask_any(job)
    assert result.table.num_rows
    assert result.error == "gone (10033)"


@pytest.mark.parametrize("job", SPECS)
def test_an_index_that_was_never_synced_does_not_answer(library: Library, job: str) -> None:
    library.register("new", SPECS[job])
    with pytest.raises(IndexBuilding, match="sys/shop/items/new is still building; wait"):
        ask("new", FIRST[job])
    library.set("new", status=JobStatus(error_code=31, error_msg="no luck", progress="3 of 64"))
    with pytest.raises(IndexBuilding, match=r"building \(3 of 64\), .* failed: no luck \(31\)"):
        ask("new", FIRST[job])
    library.set("new", state=JobState.ERROR, status=JobStatus(error_code=10_033, error_msg="bad"))
    with pytest.raises(JobInError, match=r"failed before its first sync was done: bad \(10033\)"):
        ask("new", FIRST[job])


def test_a_paused_index_that_was_never_synced_says_what_it_waits_for(library: Library) -> None:
    library.register("new", SPECS["look"])
    with library.open_log() as log:
        api.pause_job("shop.items", "new", log=log)
    with pytest.raises(IndexBuilding, match="still building and is paused; `iscp resume`"):
        ask("new")


def test_dropped_and_unknown_indexes_are_told_apart(library: Library) -> None:
    with library.open_log() as log:
        assert api.unregister_job("shop.items", "look", log=log)
    with pytest.raises(IndexDropped, match="sys/shop/items/look was dropped at 20"):
        ask("look")
    with pytest.raises(UnknownJob, match="sys/shop/items/nope"):
        ask("nope")
    with pytest.raises(UnknownTable):
        search("shop.nope", "look")
    with pytest.raises(UnknownTable, match="other"):
        ask("look", account="other")


def test_a_new_generation_does_not_answer_from_the_old_one(library: Library) -> None:
    with library.open_log() as log:
        assert api.unregister_job("shop.items", "look", log=log)
    library.register("look", SPECS["look"])
    with pytest.raises(IndexBuilding):
        ask("look")


@pytest.mark.parametrize(
    ("job", "question", "says"),
    [
        ("words", {}, "query: missing"),
        ("words", {"query": "-red"}, "asks for nothing"),
        ("words", {"query": "red", "vector": [1.0]}, "vector: .*/words is a fulltext index"),
        ("words", {"query": "red", "columns": ["nope"]}, "columns: the index has no 'nope'"),
        ("words", {"query": "red", "where": "nope = 1"}, "where: nope"),
        ("words", {"query": "red", "k": 0}, "k: 0 is not above 0"),
        ("near", {}, "either a text or a vector"),
        ("near", {"query": "red"}, "come from column 'vec'.*search by a vector"),
        ("near", {"vector": [1.0]}, "vector: has 1 numbers, the index has 3"),
        ("near", {"vector": [1.0, math.nan, 0.0]}, "vector: NaN"),
        ("look", {"vector": [1.0]}, "vector: .*/look is a lookup index"),
        ("look", {"query": "nope=1"}, "query: the index has no column 'nope'; it has"),
        ("look", {"query": "id=x"}, "query: 'id' is int64, 'x' is not"),
        ("look", {"query": "id=1 'x"}, "quote that never ends"),
        ("look", {"query": "id=1 x"}, "is not column=value"),
        ("look", {"columns": ["vec"]}, "columns: the index has no 'vec'; it has region"),
        ("look", {"where": "size = (SELECT 1)"}, "where: "),
        ("look", {"where": "upper(size, 1) > 'a' OR"}, "where: "),
        ("sums", {"query": "_iscp_rows=1"}, "query: the index has no column '_iscp_rows'"),
        ("sums", {"where": "_iscp_rows = 1"}, "where: .*_iscp_rows"),
    ],
)
def test_questions_that_do_not_fit_are_refused_in_one_line(
    library: Library, job: str, question: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        ask(job, **question)
    assert "\n" not in str(refused.value)


def test_what_a_user_writes_never_becomes_sql(library: Library) -> None:
    evil = "x' OR '1'='1"
    assert ask("look", evil.replace("=", " is "), k=ALL).table.num_rows == 0
    assert ask("look", f'section="{evil}"', k=ALL).table.num_rows == 0

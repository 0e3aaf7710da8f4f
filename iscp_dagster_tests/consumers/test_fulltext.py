"""`fulltext` through Spark: what is in the index, what is found, what is skipped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iscp_dagster.consumers.fulltext import Fulltext
from iscp_dagster.consumers.json_text import JsonPath
from iscp_dagster.errors import IndexBehindWindow, SourceColumnChanged, UsageError
from iscp_dagster.rules.model import Window
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster_tests.consumers.shelf import WORDS, Keeper, Shelf, same_key, ts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def expected(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What an index of title and body holds."""
    return {
        same_key(row): (row["Title"], row["body"], row["shelf"])
        for row in rows
        if row["Title"] or row["body"]
    }


def held(keeper: Keeper) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What the index holds."""
    rows = keeper.reader.table().to_pylist()
    found = {same_key(row): (row["Title"], row["body"], row["shelf"]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.spark
@pytest.mark.parametrize("driver_rows", [10_000, 0])
def test_an_index_equals_a_build_from_scratch_at_its_watermark(
    spark: SparkSession, tmp_path: Path, driver_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the driver, and through Spark tasks: 0 sends every window to the tasks."""
    monkeypatch.setattr(Fulltext, "driver_rows", driver_rows)
    shelf = Shelf.create(tmp_path / "source")
    keeper = Keeper.open(
        spark, shelf, Fulltext, tmp_path / "index", ("Title", "body"), include="shelf"
    )
    for _ in range(4):
        result = keeper.sync()
        rows = expected(shelf.rows())
        assert held(keeper) == rows
        assert (result.row_count, result.watermark) == (len(rows), ts(shelf.version))
        for word in WORDS:
            found = keeper.reader.text_search(word, 1000).to_pylist()
            matching = {
                key for key, texts in rows.items() if word in " ".join(map(str, texts[:2])).split()
            }
            assert {same_key(row) for row in found} == matching, word
        for _ in range(4):
            shelf.churn()


@dataclass(frozen=True)
class Told:
    upserted: int
    deleted: int
    skipped: int


@pytest.mark.spark
def test_only_rows_whose_text_changed_are_indexed_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf.create(tmp_path / "source", [])
    shelf.add(*(shelf.row(Title="amber", body=None) for _ in range(10)))
    keeper = Keeper.open(spark, shelf, Fulltext, tmp_path / "index", ("Title", "body"))

    def told() -> Told:
        result = keeper.sync()
        return Told(result.rows_upserted, result.rows_deleted, result.rows_skipped)

    assert told() == Told(10, 0, 0)
    shelf.update({"stock": "stock + 1"}, "true")
    assert told() == Told(0, 0, 10)
    shelf.update({"body": "'dune'"}, "id <= 3")
    assert told() == Told(3, 0, 0)
    shelf.update({"Title": "NULL", "body": "''"}, "id <= 2")
    assert told() == Told(0, 2, 0)
    shelf.delete("id <= 4")
    assert told() == Told(0, 2, 2)  # two of them were out already
    shelf.update({"id": "id + 100"}, "id = 5")
    assert told() == Told(1, 1, 0)
    assert sorted(row["id"] for row in keeper.reader.table().to_pylist()) == [6, 7, 8, 9, 10, 105]


@pytest.mark.spark
def test_a_window_is_applied_once_and_never_with_a_gap(spark: SparkSession, tmp_path: Path) -> None:
    shelf = Shelf.create(tmp_path / "source")
    keeper = Keeper.open(spark, shelf, Fulltext, tmp_path / "index", ("body",))
    window = keeper.window()
    keeper.sync()
    with keeper.changes(window) as changes:
        again = keeper.consumer.apply(changes, window)
    assert again.no_op
    shelf.churn()
    shelf.churn()
    gap = Window(ts(1), ts(2))
    with keeper.changes(gap) as changes, pytest.raises(IndexBehindWindow):
        keeper.consumer.apply(changes, gap)
    assert keeper.consumer.watermark() == ts(0)


@pytest.mark.spark
def test_what_an_index_is_built_from_never_changes(spark: SparkSession, tmp_path: Path) -> None:
    shelf = Shelf.create(tmp_path / "source", [])
    shelf.add(shelf.row(Title=None, body="Cafés running"))
    place = tmp_path / "index"
    first = Keeper.open(
        spark,
        shelf,
        Fulltext,
        place,
        ("body",),
        tokenizer="simple",
        stem="true",
        language="English",
    )
    first.sync()
    shelf.add(shelf.row(Title="runs", body="he runs"))
    second = Keeper.open(spark, shelf, Fulltext, place, ("Title",), tokenizer="ngram")
    assert second.consumer.columns == first.consumer.columns
    second.sync()
    assert second.reader.text_search("run").num_rows == 2
    assert second.reader.text_search("cafe").num_rows == 1


@pytest.mark.spark
def test_a_used_column_that_is_gone_stops_the_index_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf.create(tmp_path / "source")
    keeper = Keeper.open(spark, shelf, Fulltext, tmp_path / "index", ("body",))
    keeper.sync()
    other = Shelf.create(tmp_path / "other", [])
    rows = spark.read.format("delta").load(shelf.uri).withColumnRenamed("body", "text")
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(other.uri)
    keeper.shelf = other
    with pytest.raises(SourceColumnChanged, match="'body'"):
        keeper.prepare()


@pytest.mark.spark
def test_only_rows_that_the_filter_lets_in_are_found(spark: SparkSession, tmp_path: Path) -> None:
    shelf = Shelf.create(tmp_path / "source", [])
    shelf.add(*(shelf.row(body="dune", shelf=name) for name in ("a", "b", "a", None)))
    keeper = Keeper.open(
        spark, shelf, Fulltext, tmp_path / "index", ("body",), where="shelf = 'a'", include="stock"
    )
    keeper.sync()
    assert set(keeper.reader.text_search("dune")["id"].to_pylist()) == {1, 3}
    shelf.update({"shelf": "'a'"}, "id = 4")
    shelf.update({"shelf": "NULL"}, "id = 1")
    keeper.sync()
    assert set(keeper.reader.text_search("dune")["id"].to_pylist()) == {3, 4}


DOCUMENTS = (
    '{"a": {"b": "amber \\"q\\" \\u00fc"}, "n": 1.50}',
    '{"a": {"b": ["x", {"c": "dune"}, null, true, 1e3, -1.25e10, 1e-5, 123456789012345678901]}}',
    '{"a": {"b": {"c": [1, 2.0], "d": null, "e": "é"}}}',
    '{"a": {"b": 1.50}}',
    '{"a": {"b": true}}',
    '{"a": {"b": null}}',
    '{"a": {"b": ""}}',
    '{"a": "b"}',
    "[1, 2]",
    "no json",
    "",
    None,
)


@pytest.mark.spark
@pytest.mark.parametrize(
    "path", ["$.a.b", "$.a", "$.n", "$.a.b[1].c", "$.a.b[0]", "$.a.b[7]", "$[1]"]
)
def test_a_path_reads_the_same_with_and_without_spark(spark: SparkSession, path: str) -> None:
    from pyspark.sql import functions as fn

    rows = spark.createDataFrame(list(enumerate(DOCUMENTS)), "id int, doc string")
    read = rows.select("id", fn.get_json_object("doc", path).alias("text")).collect()
    found = JsonPath.parse(f"doc:{path}")
    assert found is not None
    assert {row["id"]: row["text"] for row in read} == {
        number: found.read(document) for number, document in enumerate(DOCUMENTS)
    }


@pytest.mark.spark
def test_texts_inside_json_are_found_and_only_their_changes_matter(
    spark: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf.create(tmp_path / "source", [])
    shelf.add(
        shelf.row(body='{"title": "amber dune", "pages": 3}'),
        shelf.row(body='{"title": null, "pages": 4}'),
        shelf.row(body="no json"),
    )
    keeper = Keeper.open(
        spark, shelf, Fulltext, tmp_path / "index", ("body:$.title",), weights="body:$.title:2"
    )
    assert keeper.sync().row_count == 1
    (row,) = keeper.reader.text_search("dune").to_pylist()
    assert (row["id"], row["body:$.title"]) == (1, "amber dune")
    shelf.update({"body": """'{"title": "amber dune", "pages": 9}'"""}, "id = 1")
    assert keeper.sync().rows_skipped == 1
    shelf.update({"body": """'{"title": "fjord"}'"""}, "id <= 2")
    assert keeper.sync().rows_upserted == 2
    assert set(keeper.reader.text_search("fjord")["id"].to_pylist()) == {1, 2}


@dataclass(frozen=True)
class Column:
    name: str
    type: str


@dataclass(frozen=True)
class Facts:
    columns: tuple[Column, ...] = (
        Column("id", "bigint"),
        Column("body", "string"),
        Column("Odd name.", "string"),
        Column("tags", "array<string>"),
    )


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ((), {}, "columns: fulltext needs one"),
        (("id",), {}, "columns: 'id' is bigint"),
        (("nope",), {}, "columns: no column 'nope'"),
        (("nope:$.a",), {}, "columns: no column 'nope'"),
        (("body:$.a", "BODY:$.a"), {}, "columns: 'body:$.a' is named twice"),
        (("tags:$.a",), {}, "columns: 'tags' is array<string>"),
        (("body",), {"tokenizer": "lucene"}, "tokenizer: 'lucene'"),
        (("body",), {"stem": "yes"}, "stem: 'yes'"),
        (("body",), {"language": "German"}, "language: "),
        (("body",), {"stem": "true", "language": "Klingon"}, "language: 'Klingon'"),
        (("body",), {"tokenizer": "ngram", "stem": "true"}, "tokenizer: ngram"),
        (("body",), {"ngram": "2-3"}, "ngram: only"),
        (("body",), {"tokenizer": "ngram", "ngram": "4-2"}, "ngram: the shortest"),
        (("body",), {"weights": "id:3"}, "weights: 'id:3'"),
        (("body",), {"weights": "body:-1"}, "weights: 'body:-1'"),
        (("body",), {"weights": "body:nan"}, "weights: 'body:nan'"),
        (("body",), {"include": "tags"}, "include: 'tags' is array"),
        (("body",), {"where": "sleep(1)"}, "where: "),
        (("body",), {"colour": "red"}, "options: fulltext has no option 'colour'"),
    ],
)
def test_a_wrong_spec_is_refused_by_field(
    columns: tuple[str, ...], options: dict[str, str], problem: str
) -> None:
    spec = JobSpec(type="fulltext", columns=columns, options=options)
    with pytest.raises(UsageError) as refused:
        Fulltext.check_spec(spec, Facts())
    assert refused.value.message.startswith(problem)


def test_odd_names_are_stored_under_plain_ones() -> None:
    spec = JobSpec(
        type="fulltext",
        columns=("odd name.", "body"),
        options={"weights": "`Odd name.`:2.5", "where": "id > 3"},
    )
    build = Fulltext.make_build(spec, ("id",), Facts())
    assert build["stored"] == {"id": "id", "Odd name.": "c1", "body": "body"}
    assert build["weights"] == {"c1": 2.5, "body": 1.0}
    assert Fulltext.source_columns(spec, ("id",), Facts()) == ("id", "Odd name.", "body")

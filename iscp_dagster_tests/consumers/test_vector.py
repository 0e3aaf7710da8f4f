"""`vector` through Spark: given vectors and embedded texts, near and far, good and bad."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iscp_dagster.consumers.vector import Vector
from iscp_dagster.embedders import registry
from iscp_dagster.errors import BuildMismatch, EmbedderMissing, RowsRefused, UsageError
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster_tests.consumers.shelf import Keeper, Shelf, same_key, ts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY = [0.5, -0.25, 0.75, 0.1]


def scores(rows: list[dict[str, Any]], metric: str) -> dict[tuple[Any, ...], float]:
    """How near each row is to the query, by the book."""
    found = {}
    for row in rows:
        if row["vec"] is None:
            continue
        vector, query = np.array(row["vec"], np.float32), np.array(QUERY, np.float32)
        if metric == "l2":
            found[same_key(row)] = -float(np.linalg.norm(vector - query))
        else:
            dot = float(vector @ query)
            norms = float(np.linalg.norm(vector) * np.linalg.norm(query))
            found[same_key(row)] = dot if metric == "dot" else dot / norms
    return found


@pytest.mark.spark
@pytest.mark.parametrize(
    ("metric", "driver_rows"), [("l2", 10_000), ("cosine", 0), ("dot", 10_000)]
)
def test_an_index_equals_exact_search_over_the_table_at_its_watermark(
    spark: SparkSession,
    tmp_path: Path,
    metric: str,
    driver_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Vector, "driver_rows", driver_rows)
    shelf = Shelf.create(tmp_path / "source")
    keeper = Keeper.open(
        spark, shelf, Vector, tmp_path / "index", ("vec",), metric=metric, include="shelf"
    )
    for _ in range(3):
        result = keeper.sync()
        expected = scores(shelf.rows(), metric)
        found = keeper.reader.vector_search(QUERY, 1000).to_pylist()
        assert {same_key(row): pytest.approx(row["_score"], abs=1e-4) for row in found} == expected
        assert (result.row_count, result.watermark) == (len(expected), ts(shelf.version))
        for _ in range(4):
            shelf.churn()


@pytest.mark.spark
def test_vectors_that_do_not_fit_are_refused_with_their_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf.create(tmp_path / "source", [])
    good = [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    bad = [[1.0], [], [1.0, math.nan, 0.0, 0.0], [1.0, 2.0, 3.0, math.inf], [None, 0.0, 0.0, 0.0]]
    shelf.add(*(shelf.row(vec=vector) for vector in [*good, *bad, None]))
    keeper = Keeper.open(spark, shelf, Vector, tmp_path / "index", ("vec",))
    result = keeper.sync()
    assert (result.rows_upserted, result.rows_refused, result.row_count) == (3, 5, 3)
    assert [key.split('"')[1] for key in result.refused_keys] == ["4", "5", "6", "7", "8"]
    shelf.delete("id = 1")
    shelf.add(shelf.row(id=1, vec=[0.0]))
    shelf.add(shelf.row(vec=[0.0, 0.0, 0.0, 1.0]))
    result = keeper.sync()
    assert (result.rows_upserted, result.rows_refused, result.row_count) == (1, 1, 3)


@pytest.mark.spark
def test_a_bad_vector_stops_an_index_that_is_told_to_fail(
    spark: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf.create(tmp_path / "source", [])
    shelf.add(shelf.row(vec=[1.0, 2.0]), shelf.row(vec=[3.0, 4.0]))
    keeper = Keeper.open(spark, shelf, Vector, tmp_path / "index", ("vec",), on_bad_row="fail")
    keeper.sync()
    before = keeper.consumer.watermark()
    shelf.add(shelf.row(vec=[1.0, 2.0]), shelf.row(vec=[1.0]))
    with pytest.raises(RowsRefused, match=r'1 vectors .* keys \["4"'):
        keeper.sync()
    assert keeper.consumer.watermark() == before
    assert keeper.reader.rows == 2


@pytest.mark.spark
def test_a_vector_without_direction_is_refused_by_cosine_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf.create(tmp_path / "source", [])
    shelf.add(shelf.row(vec=[0.0, 0.0]), shelf.row(vec=[3.0, 4.0]))
    counts = {}
    for number, metric in enumerate(("l2", "cosine", "dot")):
        place = tmp_path / metric
        keeper = Keeper.open(spark, shelf, Vector, place, ("vec",), job_id=number, metric=metric)
        counts[metric] = keeper.sync().row_count
    assert counts == {"l2": 2, "cosine": 1, "dot": 2}


@pytest.mark.spark
def test_the_dimension_is_settled_by_the_first_vectors(spark: SparkSession, tmp_path: Path) -> None:
    shelf = Shelf.create(tmp_path / "source", [])
    shelf.add(shelf.row(vec=None))
    keeper = Keeper.open(spark, shelf, Vector, tmp_path / "index", ("vec",))
    keeper.sync()
    assert keeper.reader.vector_search([1.0, 2.0]).num_rows == 0
    shelf.add(*(shelf.row(vec=vector) for vector in ([1.0], [1.0, 2.0], [3.0, 4.0])))
    keeper.prepare()
    result = keeper.sync()
    assert (result.rows_upserted, result.rows_refused) == (2, 1)
    assert keeper.reader.vector_search([1.0, 2.0], 1)["id"].to_pylist() == [3]
    with pytest.raises(UsageError, match="has 1 numbers, the index has 2"):
        keeper.reader.vector_search([1.0])


class Counting:
    """An embedder that remembers what it was asked."""

    version = "1"
    dimension = 3

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.asked += texts
        return np.array([[len(text), text.count("a"), 1] for text in texts], np.float32)


THE_EMBEDDER = Counting()


def the_embedder() -> Counting:
    return THE_EMBEDDER


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    """The embedder as an installed package would offer it."""
    point = EntryPoint("counting", f"{__name__}:the_embedder", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]))
    monkeypatch.setattr(EntryPoint, "load", lambda self: the_embedder)
    registry.get_embedder.cache_clear()
    THE_EMBEDDER.asked.clear()
    yield THE_EMBEDDER
    THE_EMBEDDER.version = "1"
    registry.get_embedder.cache_clear()


@pytest.mark.spark
def test_only_rows_whose_text_changed_are_embedded_again(
    spark: SparkSession, tmp_path: Path, counting: Counting
) -> None:
    shelf = Shelf.create(tmp_path / "source", [])
    shelf.add(*(shelf.row(body=body) for body in ("aa", "bbb", "", None)))
    keeper = Keeper.open(spark, shelf, Vector, tmp_path / "index", ("body",), embedder="counting")
    keeper.sync()
    assert sorted(counting.asked) == ["aa", "bbb"]
    counting.asked.clear()
    shelf.update({"stock": "stock + 1"}, "true")
    shelf.update({"body": "'cccc'"}, "id = 2")
    keeper.sync()
    assert counting.asked == ["cccc"]
    nearest = keeper.reader.vector_search(list(map(float, counting.embed(["cccc"])[0])), 1)
    assert nearest["id"].to_pylist() == [2]
    assert keeper.reader.rows == 2


@pytest.mark.spark
def test_a_text_that_stayed_keeps_its_vector_when_other_columns_change(
    spark: SparkSession, tmp_path: Path, counting: Counting
) -> None:
    shelf = Shelf.create(tmp_path / "source", [])
    shelf.add(*(shelf.row(body=body, stock=1) for body in ("aa", "bbb")))
    keeper = Keeper.open(
        spark, shelf, Vector, tmp_path / "index", ("body",), embedder="counting", include="stock"
    )
    keeper.sync()
    counting.asked.clear()
    shelf.update({"stock": "7"}, "id = 2")
    assert keeper.sync().rows_upserted == 1
    assert counting.asked == []
    (row,) = keeper.reader.vector_search([3.0, 0.0, 1.0], 1).to_pylist()
    assert (row["id"], row["stock"], row["_score"]) == (2, 7, 0.0)


@pytest.mark.spark
def test_another_version_of_the_embedder_is_not_mixed_in(
    spark: SparkSession, tmp_path: Path, counting: Counting
) -> None:
    shelf = Shelf.create(tmp_path / "source", [])
    shelf.add(shelf.row(body="aa"))
    keeper = Keeper.open(spark, shelf, Vector, tmp_path / "index", ("body",), embedder="counting")
    keeper.sync()
    counting.version = "2"
    shelf.add(shelf.row(body="bb"))
    with pytest.raises(BuildMismatch, match="counting 1, installed is 2"):
        keeper.sync()
    assert keeper.reader.rows == 1


@pytest.mark.spark
def test_texts_embedded_in_spark_tasks_are_found_by_meaning(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    monkeypatch.setattr(Vector, "driver_rows", 0)
    shelf = Shelf.create(tmp_path / "source", [])
    texts = ["a fast car on the road", "bread and butter recipes", "planets around distant stars"]
    shelf.add(*(shelf.row(body=body) for body in texts))
    keeper = Keeper.open(
        spark,
        shelf,
        Vector,
        tmp_path / "index",
        ("body",),
        embedder="wordllama",
        metric="cosine",
    )
    keeper.sync()
    asked = registry.get_embedder("wordllama").embed(["baking a cake", "astronomy telescope"])
    found = [keeper.reader.vector_search(list(map(float, one)), 1) for one in asked]
    assert [one["id"][0].as_py() for one in found] == [2, 3]


@dataclass(frozen=True)
class Column:
    name: str
    type: str


@dataclass(frozen=True)
class Facts:
    columns: tuple[Column, ...] = (
        Column("id", "bigint"),
        Column("body", "string"),
        Column("vec", "array<double>"),
        Column("other", "array<float>"),
    )


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ((), {}, "columns: vector takes exactly one"),
        (("vec", "other"), {}, "columns: vector takes exactly one"),
        (("body",), {}, "columns: 'body' is string"),
        (("vec",), {"embedder": "wordllama"}, "columns: 'vec' is array<double>, not a text"),
        (("vec",), {"metric": "manhattan"}, "metric: 'manhattan'"),
        (("vec",), {"dimension": "0"}, "dimension: '0'"),
        (("vec",), {"on_bad_row": "ignore"}, "on_bad_row: 'ignore'"),
        (("vec",), {"include": "other"}, "include: 'other' is array<float>"),
    ],
)
def test_a_wrong_spec_is_refused_by_field(
    columns: tuple[str, ...], options: dict[str, str], problem: str
) -> None:
    spec = JobSpec(type="vector", columns=columns, options=options)
    with pytest.raises(UsageError) as refused:
        Vector.check_spec(spec, Facts())
    assert refused.value.message.startswith(problem)


def test_an_unknown_embedder_is_refused_by_name() -> None:
    spec = JobSpec(type="vector", columns=("body",), options={"embedder": "nope"})
    with pytest.raises(EmbedderMissing, match="'nope' is unknown"):
        Vector.check_spec(spec, Facts())

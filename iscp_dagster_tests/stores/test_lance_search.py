"""Asking an index: scores, filters, queries."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pyarrow as pa
import pytest

from iscp_dagster.errors import UsageError
from iscp_dagster.rules.model import TS, Window
from iscp_dagster.stores.lance_index import CONTROL, KEY, LanceIndex, Staged, open_dataset
from iscp_dagster.stores.lance_query import Clause, parse_query
from iscp_dagster.stores.lance_search import LanceReader
from iscp_dagster.stores.lance_segments import (
    Recipe,
    TextRecipe,
    VectorRecipe,
    keep_indexed,
    read_recipes,
    write_recipes,
)

RECALL_ROWS = int(os.environ.get("ISCP_TEST_RECALL_ROWS", "25000"))
RECALL_STEPS = int(os.environ.get("ISCP_TEST_RECALL_STEPS", "12"))


class Box:
    """An index of a few columns that a test fills; `c1` stands for a column with an odd name."""

    def __init__(self, path: Path, payload: pa.Schema, recipes: list[Recipe]) -> None:
        self.index = LanceIndex(str(path), 1)
        self.schema = pa.schema([(KEY, pa.string()), (CONTROL, pa.string()), *payload])
        texts = [one.column for one in recipes if isinstance(one, TextRecipe)]
        build: dict[str, Any] = {
            "key": ["id"],
            "stored": {
                {"c1": "Odd name."}.get(name, name): name
                for name in payload.names
                if name != "vector"
            },
            "weights": {name: 3.0 if name == "title" else 1.0 for name in texts},
            "recipes": write_recipes(recipes),
        }
        self.index.create(payload, build)
        self.recipes = build["recipes"]
        self.version = 0

    def put(
        self, rows: list[dict[str, Any]], gone: list[str] | None = None, *, indexed: bool = True
    ) -> None:
        """Apply one window: rows to insert or replace, keys to delete."""
        since = self.index.standing()
        assert since is not None
        table = pa.Table.from_pylist([{KEY: str(row["id"]), **row} for row in rows], self.schema)
        staged = Staged(self.index.stage(table), (*table[KEY].to_pylist(), *(gone or ())))
        self.version += 1
        self.index.commit(since, Window(since.watermark, TS(self.version)), staged)
        if indexed:
            self.keep_indexed()

    def keep_indexed(self) -> None:
        dataset = open_dataset(self.index.uri)
        assert dataset is not None
        keep_indexed(dataset, read_recipes(self.recipes))

    @property
    def reader(self) -> LanceReader:
        return LanceIndex.open(self.index.uri)

    def ids(self, query: str, **options: Any) -> list[int]:
        return self.reader.text_search(query, 100, **options)["id"].to_pylist()


BOOKS = pa.schema(
    [("id", pa.int64()), ("title", pa.string()), ("body", pa.string()), ("c1", pa.string())]
)


@pytest.fixture
def books(tmp_path: Path) -> Box:
    box = Box(tmp_path / "books", BOOKS, [TextRecipe("title"), TextRecipe("body")])
    rows = [
        (1, "quick brown fox", "jumps over the dog", "x"),
        (2, "lazy dog", "quick quick", "it's"),
        (3, None, "brown bread, café", "x"),
        (4, "你好世界", "北京大学的学生", None),
        (5, "ภาษาไทยง่าย", "東京都に住む", "x"),
    ]
    box.put([dict(zip(("id", "title", "body", "c1"), row, strict=True)) for row in rows])
    return box


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("quick", {1, 2}),
        ("QUICK bread", {1, 2, 3}),
        ("cafe", {3}),
        ('"quick brown"', {1}),
        ('"brown quick"', set()),
        ("+quick +lazy", {2}),
        ("quick -lazy", {1}),
        ('quick -"quick brown"', {2}),
        ("quikc", set()),
        ("quikc~2", {1, 2}),
        ("大学", {4}),
        ("世界", {4}),
        ("東京", {5}),
        ("ไทย", {5}),
        ("!!! ???", set()),
        ("it's \" (odd] AND NOT *", set()),
    ],
)
def test_words_phrases_and_signs_find_what_they_say(books: Box, query: str, ids: set[int]) -> None:
    assert set(books.ids(query)) == ids


def test_a_column_s_weight_counts(books: Box) -> None:
    assert books.ids("quick") == [1, 2]  # once in a title of weight 3, against twice in a body


def test_all_words_may_be_asked_for_across_columns(books: Box) -> None:
    assert books.ids("quick jumps", all_words=True) == [1]
    assert set(books.ids("quick jumps")) == {1, 2}


def test_a_filter_is_applied_before_ranking(books: Box) -> None:
    assert books.reader.text_search("quick", 1, where="`Odd name.` = 'it''s'")[
        "id"
    ].to_pylist() == [2]
    assert books.ids("quick brown", where="id between 2 and 9 and `odd name.` is not null") == [
        2,
        3,
    ]
    assert books.ids("quick", where="lower(title) like 'lazy%'") == [2]


@pytest.mark.parametrize("where", ["nope = 1", "id = ", "sleep(1)", "id; drop", "_pk = 'x'"])
def test_a_wrong_filter_is_refused(books: Box, where: str) -> None:
    with pytest.raises(UsageError, match="where: "):
        books.ids("quick", where=where)


def test_an_index_made_anew_in_its_place_is_read_anew(tmp_path: Path) -> None:
    # What was read stays in memory: file by file, and a file's name alone may come back.
    for word in ("amber", "basil"):
        box = Box(tmp_path / "index", BOOKS, [TextRecipe("title")])
        box.put([{"id": 1, "title": word}])
        assert (box.ids("amber"), box.ids("basil")) == (([1], []) if word == "amber" else ([], [1]))
        assert box.reader.table()["title"].to_pylist() == [word]
        box.index.drop()


def test_hits_with_one_score_order_by_key_however_many(books: Box) -> None:
    books.put([{"id": number, "title": "same title"} for number in range(3000, 1000, -1)])
    found = books.reader.text_search("same", 5000)
    assert set(found["_score"].to_pylist()[:1]) == set(found["_score"].to_pylist())
    assert found["id"].to_pylist() == list(range(1001, 3001))
    few = books.reader.text_search("same", 10)
    assert few["id"].to_pylist() == sorted(few["id"].to_pylist())


def test_an_answer_has_the_key_the_score_and_the_columns_asked_for(books: Box) -> None:
    answer = books.reader.text_search("quick", columns=["Odd name."])
    assert answer.column_names == ["_pk", "id", "Odd name.", "_score"]
    with pytest.raises(UsageError, match="columns: the index has no 'secret'"):
        books.reader.text_search("quick", columns=["secret"])


def test_an_index_answers_only_what_it_can(books: Box) -> None:
    with pytest.raises(UsageError, match="no vectors"):
        books.reader.vector_search([1.0])
    with pytest.raises(UsageError, match="asks for nothing"):
        books.reader.text_search("-only -not")
    with pytest.raises(UsageError, match="asks for nothing"):
        books.reader.text_search("  ")


def test_a_query_is_read_clause_by_clause() -> None:
    assert parse_query('blue +"mountain bike" sky -kids colour~ x~2') == (
        Clause("blue sky"),
        Clause("mountain bike", "must", phrase=True),
        Clause("kids", "not"),
        Clause("colour", fuzzy=1),
        Clause("x", fuzzy=2),
    )


@pytest.mark.parametrize(
    ("recipe", "text", "query", "found"),
    [
        (TextRecipe("title", tokenizer="ngram"), "keyboard", "boar", True),
        (TextRecipe("title", tokenizer="ngram", ngram_min=2, ngram_max=2), "keyboard", "oa", True),
        (TextRecipe("title"), "keyboard", "boar", False),
        (TextRecipe("title", stem=True), "running dogs", "run dog", True),
        (TextRecipe("title"), "running", "run", False),
        (
            TextRecipe("title", tokenizer="simple", stem=True, language="German"),
            "Häuser",
            "haus",
            True,
        ),
        (TextRecipe("title", stop_words=True), "to be or not", "the", False),
        (TextRecipe("title", stop_words=True), "the end", "the", False),
        (TextRecipe("title"), "the end", "the", True),
        (TextRecipe("title", fold=False), "café", "cafe", False),
    ],
)
def test_texts_become_words_the_way_the_recipe_says(
    tmp_path: Path, recipe: TextRecipe, text: str, query: str, found: bool
) -> None:
    box = Box(tmp_path / "box", BOOKS, [recipe])
    box.put([{"id": 1, "title": text}])
    assert (box.ids(query) == [1]) is found


def test_jieba_cuts_chinese_into_words(tmp_path: Path) -> None:
    pytest.importorskip("jieba")
    box = Box(tmp_path / "box", BOOKS, [TextRecipe("title", tokenizer="jieba/default")])
    box.put([{"id": 1, "title": "我来到北京清华大学"}])
    assert [box.ids(word) for word in ("清华大学", "京清")] == [[1], []]


class Corpus:
    """Random documents whose exact BM25 scores are known."""

    def __init__(self, documents: int) -> None:
        self.rng = random.Random(4)
        self.words = [f"w{i}" for i in range(1200)]
        self.documents = {number: self.text() for number in range(documents)}

    def text(self) -> str:
        picks = (
            min(1199, int(self.rng.expovariate(1 / 120))) for _ in range(self.rng.randint(3, 40))
        )
        return " ".join(self.words[pick] for pick in picks)

    def rows(self, numbers: list[int]) -> list[dict[str, Any]]:
        return [{"id": number, "body": self.documents[number]} for number in numbers]

    def exact(self) -> tuple[bm25s.BM25, list[int]]:
        numbers = sorted(self.documents)
        model = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
        model.index([self.documents[n].split() for n in numbers], show_progress=False)
        return model, numbers


def test_a_fresh_index_scores_by_exact_bm25(tmp_path: Path) -> None:
    corpus = Corpus(4000)
    box = Box(tmp_path / "box", BOOKS, [TextRecipe("body")])
    box.put(corpus.rows(sorted(corpus.documents)))
    reader, (model, _) = box.reader, corpus.exact()
    for _ in range(500):
        words = corpus.rng.sample(corpus.words[:600], 3)
        found = reader.text_search(" ".join(words), 20)["_score"].to_pylist()
        # bm25s leaves out the constant factor k1 + 1, as Lucene does.
        scores = np.sort(model.get_scores(words) * 2.2)[::-1][:20]
        assert found == pytest.approx(scores[scores > 0], rel=1e-4)


def test_scores_stay_near_exact_bm25_over_fifty_increments(tmp_path: Path) -> None:
    corpus = Corpus(3000)
    box = Box(tmp_path / "box", BOOKS, [TextRecipe("body")])
    box.put(corpus.rows(sorted(corpus.documents)))
    for _ in range(50):
        changed = corpus.rng.sample(sorted(corpus.documents), 30)
        gone = [changed.pop() for _ in range(3)]
        for number in changed:
            corpus.documents[number] = corpus.text()
        for number in gone:
            del corpus.documents[number]
        new = max(corpus.documents) + 1
        corpus.documents[new] = corpus.text()
        box.put(corpus.rows([*changed, new]), [str(number) for number in gone])
    reader, (model, numbers) = box.reader, corpus.exact()
    position = {number: place for place, number in enumerate(numbers)}
    agreed = total = 0
    for _ in range(300):
        words = corpus.rng.sample(corpus.words[:600], 3)
        scores = model.get_scores(words)
        best = np.sort(scores[scores > 0])[::-1][:10]
        found = reader.text_search(" ".join(words), 10)["id"].to_pylist()
        assert len(found) == len(best)
        agreed += sum(bool(scores[position[n]] >= best[-1] - 1e-5) for n in found)
        total += len(best)
    assert agreed / total >= 0.98


def test_recall_is_high_and_stays_high_over_increments(tmp_path: Path) -> None:
    dimension, rng = 128, np.random.default_rng(5)
    centers = rng.normal(size=(300, dimension)) * 3

    def vectors(count: int) -> np.ndarray:
        near = centers[rng.integers(0, len(centers), count)]
        return (near + rng.normal(size=near.shape)).astype(np.float32)

    def rows(numbers: np.ndarray) -> list[dict[str, Any]]:
        made = vectors(len(numbers))
        return [
            {"id": int(number), "vector": vector.tolist()}
            for number, vector in zip(numbers, made, strict=True)
        ]

    payload = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), dimension))])
    box = Box(tmp_path / "box", payload, [VectorRecipe("vector")])
    box.put(rows(np.arange(RECALL_ROWS)))

    def recall() -> float:
        reader, hits = box.reader, 0
        for query in vectors(50):
            near = [
                set(reader.vector_search(query, 10, exact=e)["id"].to_pylist())
                for e in (True, False)
            ]
            hits += len(near[0] & near[1])
        return hits / 500

    dataset = open_dataset(box.index.uri)
    assert dataset is not None
    assert [one.index_type for one in dataset.describe_indices()] == ["IVF_SQ"]
    assert recall() >= 0.95
    assert box.reader.recall() >= 0.95
    for _ in range(RECALL_STEPS):
        box.put(rows(rng.choice(RECALL_ROWS, 300, replace=False)))
    assert recall() >= 0.95


@pytest.fixture
def moved(tmp_path: Path) -> Box:
    """A vector index trained on a few rows, and many more that are far from all of them."""
    payload = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), 8))])
    box = Box(tmp_path / "box", payload, [VectorRecipe("vector", flat_below=300)])
    rng = np.random.default_rng(6)
    few = rng.normal(size=(300, 8)) * 1e-3
    box.put([{"id": n, "vector": row.tolist()} for n, row in enumerate(few)])
    many = rng.normal(size=(6000, 8)) + 50
    rows = [{"id": n + 300, "vector": row.tolist()} for n, row in enumerate(many)]
    box.put(rows, indexed=False)
    return box


def test_a_vector_index_that_does_not_know_its_vectors_shows_in_its_recall(moved: Box) -> None:
    dataset = open_dataset(moved.index.uri)
    assert dataset is not None
    dataset.optimize.optimize_indices(num_indices_to_merge=0)
    assert moved.reader.recall(queries=40) < 0.8


def test_a_vector_index_that_has_outgrown_its_training_is_trained_anew(moved: Box) -> None:
    moved.keep_indexed()
    assert moved.reader.recall(queries=40) >= 0.95

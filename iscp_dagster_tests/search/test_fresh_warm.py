"""What a fresh search keeps for the next one, and when it must not be believed."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from iscp_dagster.embedders.wordllama import WordLlama
from iscp_dagster.errors import SourceTableReplaced, TailUnavailable
from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import TableKey
from iscp_dagster.search import search
from iscp_dagster.search.run import SearchResult
from iscp_dagster.search.tail import Tail, forget_tails, read_tail
from iscp_dagster_tests.search.library import SPECS, Library, ids, item

pytestmark = pytest.mark.spark

QUERIES = {"words": "zebra", "like": "zebra", "look": "size=6", "sums": "editors"}


def fresh(job: str, log: JobLog | None = None) -> SearchResult:
    vector = [1.0, 1.0, -0.5] if job == "near" else None
    return search("shop.items", job, QUERIES.get(job), vector=vector, k=1000, fresh=True, log=log)


def lose_changes(library: Library) -> None:
    """Take away what a tail is read from."""
    shutil.rmtree(library.folder / "items" / "_change_data")


@pytest.mark.parametrize("job", SPECS)
def test_while_the_table_stays_nothing_is_read_again(library: Library, job: str) -> None:
    library.update({"Title": "'zebra'", "size": "6", "vec": "NULL"}, "id < 9")
    first = fresh(job)
    lose_changes(library)
    assert fresh(job).table.equals(first.table)
    assert fresh(job).watermark == first.watermark == library.head


@pytest.mark.parametrize("job", SPECS)
def test_a_commit_makes_the_next_search_read_that_commit_alone(library: Library, job: str) -> None:
    library.update({"Title": "'zebra'", "size": "6", "vec": "NULL"}, "id < 9")
    first = fresh(job)
    lose_changes(library)
    library.add(item(100, Title="zebra", size=6, section="editors"))
    second = fresh(job)
    assert first.watermark < second.watermark == library.head
    assert not second.table.equals(first.table)
    forget_tails()
    with pytest.raises(TailUnavailable):
        fresh(job)


def test_a_tail_that_grows_and_grows_is_what_it_would_be_as_a_whole(library: Library) -> None:
    for number in range(10):
        library.add(item(100 + number, Title=f"zebra {number}", vec=[0.1 * number, 1.0, 0.0]))
        library.update({"Title": f"'red {number}'"}, f"id = {number} or id = {100 + number // 2}")
        if number % 3 == 0:
            library.delete(f"id = {12 + number}")
            fresh("near")
            fresh("like")
        red = search("shop.items", "words", "red", k=1000, fresh=True)
        assert {100 + half for half in range(number // 2 + 1)} <= set(ids(red.hits()))
    grown = {job: fresh(job).table for job in ("words", "near", "like")}
    forget_tails()
    for job, table in grown.items():
        whole = fresh(job).table
        assert keys_of(table) == keys_of(whole)
        if job != "words":
            assert table["score"].to_pylist() == pytest.approx(whole["score"].to_pylist())


def keys_of(table: pa.Table) -> set[tuple[str, int]]:
    return set(zip(table["region"].to_pylist(), table["id"].to_pylist(), strict=True))


def test_another_table_with_as_many_commits_is_noticed(library: Library, tmp_path: Path) -> None:
    other = Library(tmp_path / "other")
    for one in (library, other):
        one.add(item(100, Title="zebra"))
    while other.head.version < library.head.version:
        other.add(item(101, Title="zebra"))
    assert ids(fresh("words").hits()) == [100]
    shutil.rmtree(library.source)
    shutil.copytree(other.source, library.source)
    with pytest.raises(SourceTableReplaced):
        fresh("words")


def test_changes_that_an_index_does_not_read_touch_nothing(library: Library) -> None:
    library.update({"size": "size + 1"}, "id < 5")
    assert tail_of(library, "words").touched == frozenset()
    assert tail_of(library, "look").touched == {
        f'["{"eu" if n % 3 else "us"}","{n}"]' for n in range(5)
    }
    plain = search("shop.items", "words", "red", k=1000)
    result = search("shop.items", "words", "red", k=1000, fresh=True)
    assert result.table.equals(plain.table)
    assert plain.watermark < result.watermark == library.head


def tail_of(library: Library, job: str) -> Tail:
    source = {"words": ("Title", "section", "score", "key"), "look": ("section", "size")}[job]
    with library.open_log() as log:
        table = log.tables.get(TableKey("sys", "shop", "items"))
    since = search("shop.items", job, "red" if job == "words" else None).watermark
    tail = read_tail(table, since, {"source": dict.fromkeys(source, "string")})
    assert tail is not None
    return tail


def test_texts_that_stay_are_not_embedded_again(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    embed = WordLlama.embed

    def noted(self: WordLlama, texts: Sequence[str]) -> np.ndarray:
        given.extend(texts)
        return embed(self, texts)

    monkeypatch.setattr(WordLlama, "embed", noted)
    library.update({"size": "size + 1"}, "id < 9")
    assert {row["id"]: row["size"] for row in fresh("like").table.to_pylist()}[3] == 4
    assert given == ["zebra"]  # what was asked for
    library.update({"Title": "'a zebra'"}, "id = 3")
    fresh("like")
    assert sorted(given) == ["a zebra", "zebra", "zebra"]
    library.update({"size": "size + 1", "Title": "'zebra'"}, "id = 6")
    library.update({"size": "size + 1"}, "id = 3")
    best = fresh("like").table.slice(0, 2).to_pylist()
    assert [(row["id"], row["size"]) for row in best] == [(6, 8), (3, 5)]
    assert len(given) == 5


def test_the_folders_of_tails_go_with_them(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_tails()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for number in range(3):
        library.add(item(100 + number, Title="zebra"))
        assert len(fresh("words").hits()) == number + 1
        gc.collect()
        # The tail before it is not needed any more.
        assert len(list(tmp_path.glob("iscp-search-*"))) == 1
    shutil.rmtree(next(tmp_path.glob("iscp-search-*")))  # somebody tidies up
    assert len(fresh("words").hits()) == 3
    forget_tails()
    gc.collect()
    assert not list(tmp_path.glob("iscp-search-*"))


def test_threads_each_get_an_answer_that_is_true_at_its_version(library: Library) -> None:
    start = library.head.version
    with library.open_log() as log, ThreadPoolExecutor(4) as pool:
        asked = []
        for number in range(4):
            library.add(item(100 + number, Title="zebra"))
            asked += [pool.submit(fresh, "words", log) for _ in range(4)]
        results = [one.result() for one in asked]
    assert {result.version for result in results} <= set(range(start + 1, start + 5))
    for result in results:
        assert sorted(ids(result.hits())) == list(range(100, 100 + result.version - start))
    assert len(fresh("words").hits()) == 4

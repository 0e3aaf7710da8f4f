"""A window and its watermark in one commit: whole or not at all, once, and only by one writer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from iscp_dagster.errors import BuildMismatch, IndexBuilding, IndexContended, IndexMissing
from iscp_dagster.rules.model import TS, Window
from iscp_dagster.stores.lance_index import LanceIndex, Staged, open_dataset
from iscp_dagster_tests.stores.lance_history import (
    BUILD,
    PAYLOAD,
    WORDS,
    apply,
    content,
    create,
    found_by,
    nearest,
    rows_of,
    stage,
    state,
    tidy,
    ts,
    vector_of,
)


@pytest.mark.parametrize("seed", range(4))
def test_an_index_equals_a_build_from_scratch_at_its_watermark(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    index = create(tmp_path / "index")
    version = rng.randint(0, 20)
    for step in range(12):
        apply(index, version, indexed=rng.random() < 0.8)
        scratch = create(tmp_path / f"scratch{step}")
        apply(scratch, version)
        there, anew = LanceIndex.open(index.uri), LanceIndex.open(scratch.uri)
        assert there.watermark == ts(version)
        assert content(there) == content(anew) == state(version)
        assert there.rows == len(state(version))
        for word in rng.sample(WORDS, 3):
            expected = {n for n, text in state(version).items() if word in text.split()}
            assert found_by(there, word) == found_by(anew, word) == expected
            assert nearest(there, word) == nearest(anew, word)
        version += rng.randint(1, 6)


def test_there_is_no_index_before_it_is_made(tmp_path: Path) -> None:
    index = LanceIndex(str(tmp_path / "none"), 1)
    assert index.standing() is None
    index.drop()
    with pytest.raises(IndexMissing):
        LanceIndex.open(index.uri)


def test_making_an_index_twice_keeps_what_was_settled_first(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    apply(index, 3)
    again = index.create(PAYLOAD, {**BUILD, "type": "another"})
    assert (again.build["type"], again.watermark) == ("test", ts(3))


def test_an_index_that_was_never_synced_does_not_answer(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    with pytest.raises(IndexBuilding):
        LanceIndex.open(index.uri)


def test_the_watermark_keeps_the_time_it_is_known_by(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    assert apply(index, 3).watermark.time == ts(3).time


def test_a_window_without_changes_moves_the_watermark(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    since = apply(index, 3)
    after = index.commit(since, Window(ts(3), ts(9)), Staged())
    assert after.watermark == ts(9)
    assert content(LanceIndex.open(index.uri)) == state(3)


def test_a_snapshot_replaces_whatever_is_there(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    apply(index, 10)
    since = index.standing()
    assert since is not None
    index.commit(since, Window(TS.zero(), ts(30)), stage(index, -1, 30))
    tidy(index)
    reader = LanceIndex.open(index.uri)
    assert content(reader) == state(30)
    word = WORDS[0]
    assert found_by(reader, word) == {n for n, t in state(30).items() if word in t.split()}


def test_a_writer_that_read_the_index_before_another_committed_loses(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    since = apply(index, 3)
    late = stage(index, 3, 5)
    apply(index, 6)
    with pytest.raises(IndexContended):
        index.commit(since, Window(ts(3), ts(5)), late)
    assert content(LanceIndex.open(index.uri)) == state(6)


def test_a_late_snapshot_loses_too(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    since = index.standing()
    assert since is not None
    late = stage(index, -1, 5)
    apply(index, 6)
    with pytest.raises(IndexContended):
        index.commit(since, Window(TS.zero(), ts(5)), late)
    assert content(LanceIndex.open(index.uri)) == state(6)


def test_another_generation_can_neither_read_nor_write(tmp_path: Path) -> None:
    index = create(tmp_path / "index", job_id=7)
    since = apply(index, 3)
    other = LanceIndex(index.uri, 8)
    with pytest.raises(BuildMismatch):
        other.standing()
    with pytest.raises(BuildMismatch):
        other.commit(since, Window(ts(3), ts(4)), Staged())


def test_what_is_staged_is_not_seen_before_its_commit(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    apply(index, 3)
    index.stage(rows_of({500: "never committed"}))
    assert content(LanceIndex.open(index.uri)) == state(3)


def test_a_reader_stays_at_the_version_it_opened(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    apply(index, 3)
    reader = LanceIndex.open(index.uri)
    apply(index, 40)
    assert (reader.watermark, content(reader)) == (ts(3), state(3))
    again = LanceIndex.open(index.uri, reader.version)
    assert (again.watermark, content(again)) == (ts(3), state(3))
    with pytest.raises(IndexMissing):
        LanceIndex.open(index.uri, 10_000)


def test_the_key_of_a_row_can_t_be_taken_for_the_control_row(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    since = apply(index, 3)
    rows = rows_of({900: "*"})
    index.commit(
        since, Window(ts(3), ts(4)), Staged(index.stage(rows), tuple(rows["_pk"].to_pylist()))
    )
    assert content(LanceIndex.open(index.uri))[900] == "*"
    standing = index.standing()
    assert standing is not None
    assert standing.watermark == ts(4)


def test_dropping_removes_the_files(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    apply(index, 3)
    index.drop()
    assert not (tmp_path / "index").exists()
    assert index.standing() is None


def test_a_column_that_comes_later_is_empty_for_old_rows(tmp_path: Path) -> None:
    index = LanceIndex(str(tmp_path / "index"), 1)
    index.create(PAYLOAD.remove(2), BUILD)
    index.add_column(PAYLOAD.field("vector"))
    index.add_column(PAYLOAD.field("vector"))
    dataset = open_dataset(index.uri)
    assert dataset is not None
    assert dataset.schema.names[-1] == "vector"
    apply(index, 3)
    reader = LanceIndex.open(index.uri)
    assert reader.vector_search(vector_of("x"), 3).num_rows == min(3, len(state(3)))

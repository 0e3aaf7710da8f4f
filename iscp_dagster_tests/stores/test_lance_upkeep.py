"""Segments after each window, merges, compaction, cleanup: faster, and never another answer."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from lance import LanceDataset

from iscp_dagster.errors import IndexMissing
from iscp_dagster.rules.model import Window
from iscp_dagster.stores.lance_index import (
    LanceIndex,
    control_fragment,
    open_dataset,
)
from iscp_dagster.stores.lance_segments import (
    MAX_SEGMENTS,
    KeyRecipe,
    TextRecipe,
    VectorRecipe,
    read_recipes,
    segments_of,
    write_recipes,
)
from iscp_dagster.stores.lance_upkeep import clean, optimize
from iscp_dagster_tests.stores.lance_history import (
    WORDS,
    apply,
    content,
    create,
    found_by,
    nearest,
    stage,
    state,
    tidy,
    ts,
)

TEXT = TextRecipe("body")


def newest(index: LanceIndex) -> LanceDataset:
    dataset = open_dataset(index.uri)
    assert dataset is not None
    return dataset


def segments(index: LanceIndex) -> set[str]:
    return {part.uuid for one in newest(index).describe_indices() for part in one.segments}


def unindexed(index: LanceIndex, recipe: TextRecipe | VectorRecipe) -> int:
    return newest(index).stats.index_stats(recipe.name)["num_unindexed_rows"]


def test_every_window_s_rows_are_indexed_and_segments_stay_few(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    most = 0
    for version in range(30):
        apply(index, version)
        assert unindexed(index, TEXT) <= 1  # the control row
        most = max(most, segments_of(newest(index), TEXT))
    assert most <= MAX_SEGMENTS


def test_a_crash_before_the_segment_costs_no_row(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    apply(index, 20)
    apply(index, 25, indexed=False)
    assert unindexed(index, TEXT) > 1
    reader = LanceIndex.open(index.uri)
    for word in WORDS:
        assert found_by(reader, word) == {n for n, t in state(25).items() if word in t.split()}
    tidy(index)
    assert unindexed(index, TEXT) <= 1


def test_maintenance_changes_no_answer(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    for version in range(0, 60, 2):
        apply(index, version)
    before = LanceIndex.open(index.uri)
    fragments = len(newest(index).get_fragments())
    done = optimize(index)
    assert done.before.fragments == fragments > done.after.fragments
    assert done.before.segments > done.after.segments == 3
    assert done.before.bytes > done.after.bytes > 0
    assert not done.contended
    after = LanceIndex.open(index.uri)
    assert after.watermark == before.watermark
    assert content(after) == content(before) == state(58)
    for word in WORDS:
        assert found_by(after, word) == found_by(before, word)
        assert nearest(after, word) == nearest(before, word)
    apply(index, 61)
    assert content(LanceIndex.open(index.uri)) == state(61)


def test_retraining_builds_every_index_anew(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    for version in range(40, 50):
        apply(index, version)
    recipes = (TEXT, VectorRecipe("vector"), KeyRecipe())
    old = segments(index)
    optimize(index, retrain=True)
    described = newest(index).describe_indices()
    assert {one.name for one in described} == {recipe.name for recipe in recipes}
    new = segments(index)
    assert len(new) == 3
    assert not new & old


def test_training_is_not_lost_to_the_windows_that_come_meanwhile(tmp_path: Path) -> None:
    """Each window adds a segment of its own, which would make a plain build lose for ever."""
    index = create(tmp_path / "index")
    for version in range(40, 50):
        apply(index, version)
    reader = LanceIndex.open(index.uri)
    old = segments(index)
    steps: list[str] = []

    def meanwhile(step: str) -> None:
        steps.append(step)
        if TEXT.name not in step:  # so many deletions: windows build that one anew themselves
            apply(index, 50 + len(steps))

    done = optimize(index, retrain=True, tell=meanwhile)
    assert not done.contended
    names = [recipe.name for recipe in (TEXT, VectorRecipe("vector"), KeyRecipe())]
    assert steps == [
        *(step for name in names for step in (f"building {name} anew", f"putting {name} in place")),
        "compacting fragments",
    ]
    assert not segments(index) & old
    assert [unindexed(index, one) for one in (TEXT, VectorRecipe("vector"))] == [0, 0]
    assert content(reader) == state(49)
    now = LanceIndex.open(index.uri)
    last = 50 + len(steps)
    assert content(now) == state(last)
    assert now.recall(queries=60) == 1.0
    for word in WORDS:
        assert found_by(now, word) == {n for n, t in state(last).items() if word in t.split()}


def test_an_index_that_somebody_merged_meanwhile_is_built_again(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    for version in range(40, 50):
        apply(index, version)
    steps: list[str] = []

    def meanwhile(step: str) -> None:
        steps.append(step)
        if steps.count("putting body_fts in place") == 1 == len(steps) - 1:
            apply(index, 55)
            TEXT.build(newest(index))

    assert not optimize(index, retrain=True, tell=meanwhile).contended
    assert steps.count("building body_fts anew") == 2
    now = LanceIndex.open(index.uri)
    for word in WORDS:
        assert found_by(now, word) == {n for n, t in state(55).items() if word in t.split()}


def test_an_index_of_no_rows_is_optimized(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    assert optimize(index, retrain=True).after.fragments == 1
    apply(index, 3)
    assert content(LanceIndex.open(index.uri)) == state(3)


def test_a_window_that_meets_a_compaction_goes_through(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    for version in range(30):
        apply(index, version)
    since = index.standing()
    assert since is not None
    staged = stage(index, 29, 45)
    optimize(index)
    index.commit(since, Window(ts(29), ts(45)), staged)
    assert content(LanceIndex.open(index.uri)) == state(45)


def test_compaction_leaves_the_control_row_alone(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    for version in range(20):
        apply(index, version)
    before = control_fragment(newest(index))
    optimize(index)
    assert control_fragment(newest(index)) == before is not None


def test_cleanup_keeps_what_readers_may_still_read(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    apply(index, 3)
    reader = LanceIndex.open(index.uri)
    apply(index, 30)
    assert clean(index).versions == 0
    assert content(reader) == state(3)
    with pytest.raises(ValueError, match="may still be read"):
        clean(index, timedelta(0))


def test_there_is_nothing_to_maintain_where_there_is_no_index(tmp_path: Path) -> None:
    for work in (optimize, clean):
        with pytest.raises(IndexMissing):
            work(LanceIndex(str(tmp_path / "none"), 1))


def test_recipes_are_read_as_they_were_written() -> None:
    recipes = (
        TextRecipe("body", tokenizer="ngram", ngram_min=2),
        VectorRecipe("vector", "cosine"),
        KeyRecipe(),
    )
    assert read_recipes(write_recipes(recipes)) == recipes

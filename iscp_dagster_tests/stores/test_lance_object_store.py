"""The same index behind an S3 endpoint: conditional puts decide who commits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from iscp_dagster.errors import IndexContended
from iscp_dagster.rules.model import Window
from iscp_dagster.sources.storage import open_store
from iscp_dagster.stores.lance_clone import clone_options, make_clone
from iscp_dagster.stores.lance_index import LanceIndex, Staged, commit_once, stage_batches
from iscp_dagster.stores.lance_search import LanceReader
from iscp_dagster.stores.lance_upkeep import clean, optimize
from iscp_dagster_tests.stores.bucket import bucket, endpoint
from iscp_dagster_tests.stores.lance_history import (
    WORDS,
    apply,
    content,
    create,
    found_by,
    key_of,
    nearest,
    rows_of,
    stage,
    state,
    ts,
)

__all__ = ["bucket", "endpoint"]

URI = "s3://lake/some folder/index"


@pytest.mark.usefixtures("bucket")
def test_windows_searches_maintenance_and_drop_work_as_on_disk() -> None:
    index = create(URI)
    for version in (5, 6, 9):
        apply(index, version)
        reader = LanceIndex.open(URI)
        assert reader.watermark == ts(version)
        assert content(reader) == state(version)
        for word in WORDS[:3]:
            assert found_by(reader, word) == {
                n for n, text in state(version).items() if word in text.split()
            }
    optimize(index)
    clean(index)
    assert content(LanceIndex.open(URI)) == state(9)
    index.drop()
    assert index.standing() is None


@pytest.mark.usefixtures("bucket")
def test_of_two_writers_one_always_loses_cleanly() -> None:
    index = create(URI)
    since = apply(index, 3)
    for version in range(3, 9):
        window = Window(ts(version), ts(version + 1))
        staged = [stage(index, version, version + 1) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            tries = [pool.submit(index.commit, since, window, one) for one in staged]
        errors = [error for one in tries if (error := one.exception())]
        assert [type(error) for error in errors] == [IndexContended]
        since = next(one.result() for one in tries if not one.exception())
        assert content(LanceIndex.open(URI)) == state(version + 1)


@pytest.mark.usefixtures("bucket")
def test_a_clone_answers_as_its_origin_and_is_written_beside_it(tmp_path: Path) -> None:
    index = create(URI)
    for version in (40, 41, 43):
        apply(index, version)
    reader = LanceIndex.open(URI)
    there = objects()
    clone = LanceReader(make_clone(reader, tmp_path / "clone"), reader.standing)
    assert content(clone) == content(reader)
    assert all(found_by(clone, word) == found_by(reader, word) for word in WORDS)
    assert nearest(clone, "amber") == nearest(reader, "amber")
    described = [(one.name, len(one.segments)) for one in reader.dataset.describe_indices()]
    assert len(described) == 3
    assert [(one.name, len(one.segments)) for one in clone.dataset.describe_indices()] == described

    rows = rows_of({500: "fjord zebra"})
    options = clone_options(reader)
    staged = stage_batches(clone.dataset.uri, rows.schema, rows.to_batches(), options)
    gone = min(found_by(reader, "fjord"))
    touched = (key_of(500), key_of(gone))
    changed = commit_once(clone.dataset, Staged(staged, touched), reader.standing, options)
    changed.optimize.optimize_indices(num_indices_to_merge=0)
    after = LanceReader(changed, reader.standing)
    assert found_by(after, "fjord") == found_by(reader, "fjord") - {gone} | {500}
    assert found_by(after, '"fjord zebra"') == {500}
    assert objects() == there


def objects() -> set[str]:
    """All that is in the bucket."""
    return {one["path"] for batch in open_store("s3://lake").list() for one in batch}

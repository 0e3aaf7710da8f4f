"""`fresh=True` for indexes in an object store: as on disk, and nothing is written there."""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp_dagster.search import search
from iscp_dagster.sources.storage import open_store
from iscp_dagster_tests.search.library import Library, item
from iscp_dagster_tests.search.test_fresh import QUESTIONS, churn
from iscp_dagster_tests.stores.bucket import bucket, endpoint

__all__ = ["bucket", "endpoint"]

pytestmark = pytest.mark.spark
LANCE = [one for one in QUESTIONS if one[0] in ("words", "near", "like")]


def test_an_index_in_an_object_store_is_searched_fresh(
    library: Library, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import random

    warehouse = Path(library.settings.warehouse)
    store = open_store(bucket)
    for path in warehouse.rglob("*"):
        if path.is_file() and ".json" not in path.suffixes:
            store.put(f"warehouse/{path.relative_to(warehouse)}", path)
    there = {one["path"] for batch in store.list() for one in batch}
    churn(library, random.Random(1), 100)
    library.add(item(700, Title="zebra crossing"))
    on_disk = [search("shop.items", job, **question, fresh=True) for job, question in LANCE]
    monkeypatch.setenv("ISCP_WAREHOUSE", f"{bucket}/warehouse")
    for (job, question), expected in zip(LANCE, on_disk, strict=True):
        found = search("shop.items", job, **question, fresh=True)
        assert found.table.equals(expected.table), (job, question)
        assert found.watermark == expected.watermark == library.head
        old = search("shop.items", job, **question)
        assert old.watermark < found.watermark
    assert {one["path"] for batch in store.list() for one in batch} == there

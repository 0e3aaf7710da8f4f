"""However many consumers an iteration has, the source is read once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterRun

from iscp_dagster import api
from iscp_dagster_tests.consumers.test_invariant import CASES
from iscp_dagster_tests.iteration.works import (
    DELTA,
    WAIT_SECONDS,
    Works,
    bytes_read,
    meanwhile,
    spark_jobs,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def twin(works: Works) -> Iterator[str]:
    """A second mirror: what it reads is what all the other jobs read together."""
    api.register_job("shop.items", "twin", CASES["mirror"].spec, log=works.house.log)
    works.catch_up()
    yield "twin"
    api.unregister_job("shop.items", "twin", log=works.house.log)


def test_three_consumers_read_as_many_bytes_of_the_source_as_one(
    works: Works, twin: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    before = works.source.version
    # New rows only: an aggregate reads groups again that lost their least or greatest value.
    works.source.insert(500)
    head = works.source.version
    window = works.house.window(before, head)
    # Delta keeps what it read of the log: neither of the two shall pay for that.
    changes = spark.read.format("delta").option("readChangeFeed", "true")
    changes.option("startingVersion", head).load(works.source.uri).count()
    spark.read.format("delta").option("versionAsOf", head).load(works.source.uri).count()

    alone, told = works.by_hand(window, twin)
    assert told == ""
    monkeypatch.setenv("ISCP_FAULT", "pause@after_scan")
    ended: list[tuple[DagsterRun, str]] = []
    with (
        meanwhile(lambda: ended.append(works.by_hand(window, *DELTA)), "after_scan") as run,
        files_away(Path(works.source.uri)) as sizes,
    ):
        # From here on there is no source to read.
        monkeypatch.delenv("ISCP_FAULT")
        run.join(WAIT_SECONDS)
    ((shared, told),) = ended
    assert told == ""
    assert works.versions(*DELTA, twin) == [head] * 4
    once, together = (bytes_read(spark, f"iscp-{one.run_id}") for one in (alone, shared))
    assert once > min(sizes)
    assert works.house.log.iterations.list(limit=1)[0].bytes_scanned in sizes
    assert together == once
    fanned = {tag for job in spark_jobs(spark) for tag in job.tags if shared.run_id in tag}
    assert len(fanned) == 1 + len(DELTA)
    assert works.is_right(*DELTA)


@contextmanager
def files_away(table: Path) -> Iterator[list[int]]:
    """Take a table's data files away, its log stays; yields their sizes."""
    away = table.with_name("away")
    files = [file for file in table.rglob("*.parquet") if "_delta_log" not in file.parts]
    sizes = [file.stat().st_size for file in files]
    moved = {file: away / file.relative_to(table) for file in files}
    for file, to in moved.items():
        to.parent.mkdir(parents=True, exist_ok=True)
        file.rename(to)
    try:
        yield sizes
    finally:
        for file, to in moved.items():
            to.rename(file)

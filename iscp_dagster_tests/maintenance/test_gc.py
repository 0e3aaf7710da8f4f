"""Tests of garbage collection: what goes, and above all what stays."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from iscp_dagster.joblog import JobLog
from iscp_dagster.maintenance.gc import GcReport, collect_garbage
from iscp_dagster.rules.model import TS, IterationKind, Job, TableKey, Window
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.stores.paths import index_uri
from iscp_dagster_tests.shop import NOW, Shop, make_delta

ITEMS = TableKey("sys", "shop", "items")
COPY = ITEMS.job("copy")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A shop with one table."""
    shop = Shop(tmp_path)
    shop.add_table()
    return shop


@pytest.fixture
def log(shop: Shop) -> Iterator[JobLog]:
    """Its log."""
    with shop.open_log() as log:
        yield log


def register(shop: Shop, log: JobLog, type_name: str = "mirror") -> Path:
    """Register `copy` and put an index where it belongs."""
    log.jobs.register(COPY, JobSpec(type=type_name), NOW)
    job = log.jobs.get(COPY)
    return make_delta(Path(index_uri(shop.settings.warehouse, COPY, job.job_id)))


def collect(shop: Shop, log: JobLog, at: datetime) -> GcReport:
    return collect_garbage(log, shop.settings, at)


def test_a_dropped_index_goes_a_day_later_files_and_row(shop: Shop, log: JobLog) -> None:
    place = register(shop, log)
    log.jobs.unregister(COPY, NOW)
    assert collect(shop, log, NOW + DAY - HOUR).jobs == 0
    assert place.exists()
    assert collect(shop, log, NOW + DAY + HOUR) == GcReport(jobs=1)
    assert not place.exists()
    assert log.jobs.dropped_before(NOW + 9 * DAY) == []
    assert collect(shop, log, NOW + DAY + HOUR) == GcReport()


def test_the_next_generation_of_the_name_keeps_its_files(shop: Shop, log: JobLog) -> None:
    old = register(shop, log)
    log.jobs.unregister(COPY, NOW)
    new = register(shop, log)
    assert old != new
    collect(shop, log, NOW + 2 * DAY)
    assert (old.exists(), new.exists()) == (False, True)
    assert log.jobs.get(COPY).job_id == 2


def test_a_live_job_is_never_collected(shop: Shop, log: JobLog) -> None:
    place = register(shop, log)
    assert collect(shop, log, NOW + 1000 * DAY) == GcReport()
    assert place.exists()
    assert log.jobs.forget(log.jobs.get(COPY).job_id) is False


def test_an_index_that_never_wrote_a_file_is_forgotten(shop: Shop, log: JobLog) -> None:
    log.jobs.register(COPY, JobSpec(type="mirror"), NOW)
    log.jobs.unregister(COPY, NOW)
    assert collect(shop, log, NOW + 2 * DAY).jobs == 1


def test_what_can_not_be_removed_is_kept_named_and_holds_nobody_up(shop: Shop, log: JobLog) -> None:
    place = register(shop, log, "graph")
    log.jobs.unregister(COPY, NOW)
    other = ITEMS.job("other")
    log.jobs.register(other, JobSpec(type="mirror"), NOW)
    log.jobs.unregister(other, NOW)
    unreadable = ITEMS.job("unreadable")
    log.jobs.register(unreadable, JobSpec(type="mirror"), NOW)
    log.jobs.unregister(unreadable, NOW)
    shop.execute("update mo_iscp_log set job_spec = 'x' where job_name = 'unreadable'")
    report = collect(shop, log, NOW + 2 * DAY)
    assert report.jobs == 1
    first, second = sorted(report.kept)
    assert first.startswith("sys/shop/items/copy (generation 1): type: 'graph' is unknown")
    assert second.startswith("sys/shop/items/unreadable (generation 3):")
    assert place.exists()
    assert str(report).splitlines()[1:] == [f"kept {one}" for one in report.kept]
    assert len(log.jobs.dropped_before(NOW + 9 * DAY)) == 2


def test_a_dropped_table_goes_once_nothing_points_at_it(shop: Shop, log: JobLog) -> None:
    register(shop, log)
    log.jobs.unregister(COPY, NOW)
    log.tables.drop(ITEMS, NOW)
    assert collect(shop, log, NOW + HOUR) == GcReport()
    assert collect(shop, log, NOW + 2 * DAY) == GcReport(jobs=1, tables=1)
    assert make_delta(shop.folder / "fresh").exists()
    assert (shop.folder / "tables" / "sys" / "shop.items").exists()


def test_old_iterations_go_but_the_newest_of_a_table_stay(shop: Shop, log: JobLog) -> None:
    log.jobs.register(COPY, JobSpec(type="mirror"), NOW)
    for number in range(103):
        run_once(log, number)
    assert collect(shop, log, NOW + 29 * DAY).iterations == 0
    assert collect(shop, log, NOW + 31 * DAY).iterations == 3
    left = log.iterations.list(limit=1000)
    assert [record.run_id for record in left] == [f"run-{n}" for n in range(102, 2, -1)]


def run_once(log: JobLog, number: int) -> None:
    window = Window(TS(number, NOW), TS(number + 1, NOW))
    started = log.iterations.start(
        log.tables.get(ITEMS),
        window,
        ["copy"],
        kind=IterationKind.TAIL,
        run_id=f"run-{number}",
        attempt=0,
        now=NOW,
    )
    log.iterations.finish(started, now=NOW)


def test_only_jobs_come_back_from_a_log_without_garbage(shop: Shop, log: JobLog) -> None:
    register(shop, log)
    collect(shop, log, NOW + 2 * DAY)
    assert [type(job) for job in log.jobs.list()] == [Job]

"""Tests of forgetting old windows in Dagster's dynamic partitions."""

from __future__ import annotations

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from iscp_dagster.orchestration.names import TAG_JOBS, TAG_TABLE, TAG_WINDOW, partitions_name
from iscp_dagster.orchestration.partitions import prune_windows
from iscp_dagster.rules.model import TS, TableKey, Window
from iscp_dagster_tests.shop import NOW, Shop

ITEMS = TableKey("sys", "shop", "items")
NAME = partitions_name(ITEMS)
KEYS = [Window(TS(v - 1, NOW) if v else TS.zero(), TS(v, NOW)).partition_key for v in range(6)]


def stand_at(shop: Shop, **versions: int) -> None:
    with shop.open_log() as log:
        for name, version in versions.items():
            log.jobs.compare_and_set(log.jobs.get(ITEMS.job(name)), watermark=TS(version, NOW))


def prune(shop: Shop, instance: DagsterInstance, keep: int) -> int:
    with shop.open_log() as log:
        return prune_windows(log, instance, keep)


def start(shop: Shop, **versions: int) -> DagsterInstance:
    shop.add_table()
    for name in versions:
        shop.register(name, {"type": "mirror"})
    stand_at(shop, **versions)
    instance = DagsterInstance.ephemeral()
    instance.add_dynamic_partitions(NAME, KEYS)
    return instance


def test_windows_go_once_the_slowest_job_has_passed_them(shop: Shop) -> None:
    with start(shop, fast=5, slow=2) as instance:
        assert prune(shop, instance, keep=1) == 3
        assert set(instance.get_dynamic_partitions(NAME)) == set(KEYS[3:])
        stand_at(shop, slow=5)
        assert prune(shop, instance, keep=1) == 2
        assert instance.get_dynamic_partitions(NAME) == KEYS[5:]
        assert prune(shop, instance, keep=1) == 0


def test_a_new_job_a_row_nobody_can_read_or_no_job_keeps_all_windows(shop: Shop) -> None:
    with start(shop, fast=5) as instance:
        shop.register("new", {"type": "mirror"})
        assert prune(shop, instance, keep=1) == 0
        stand_at(shop, new=5)
        shop.execute("update mo_iscp_log set job_spec = 'x' where job_name = 'new'")
        assert prune(shop, instance, keep=1) == 0
        with shop.open_log() as log:
            log.jobs.unregister(ITEMS.job("new"), NOW)
            log.jobs.unregister(ITEMS.job("fast"), NOW)
        assert prune(shop, instance, keep=1) == 0


def test_the_window_of_a_run_in_flight_stays(shop: Shop) -> None:
    with start(shop, fast=5) as instance:
        tags = {TAG_TABLE: str(ITEMS), TAG_JOBS: '["fast"]', TAG_WINDOW: KEYS[1]}
        instance.add_run(
            DagsterRun(job_name="run", run_id="r", status=DagsterRunStatus.STARTED, tags=tags)
        )
        assert prune(shop, instance, keep=1) == 4
        assert set(instance.get_dynamic_partitions(NAME)) == {KEYS[1], KEYS[5]}


def test_windows_of_other_tables_are_left_alone(shop: Shop) -> None:
    with start(shop, fast=5) as instance:
        shop.add_table("shop.items", account="other")
        theirs = partitions_name(TableKey("other", "shop", "items"))
        instance.add_dynamic_partitions(theirs, KEYS)
        instance.add_dynamic_partitions("somebody else's", ["a", "b"])
        prune(shop, instance, keep=1)
        assert len(instance.get_dynamic_partitions(theirs)) == 6
        assert len(instance.get_dynamic_partitions("somebody else's")) == 2

"""The runner against a real log and real Delta tables."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from iscp_dagster import api
from iscp_dagster.errors import LogUnavailable, SourceTableMissing, SourceTableReplaced
from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.runner import Runner, Tick
from iscp_dagster.rules.model import InFlight, IterationKind, JobKey
from iscp_dagster_tests.orchestration.house import House, now


def tick(runner: Runner, *in_flight: InFlight) -> Tick:
    return runner.tick(in_flight, now())


def planned(found: Tick) -> list[tuple[str, str, tuple[str, ...]]]:
    """Table, window and jobs of the iterations of a tick."""
    return [(one.table.table, str(one.window), one.job_names) for one in found.plan.iterations]


def test_a_new_job_starts_from_zero_up_to_the_newest_version(house: House):
    house.table()
    house.commit()
    house.register()
    found = tick(Runner(house.log))
    assert planned(found) == [("items", "(0, v1]", ("look",))]
    assert found.plan.iterations[0].kind is IterationKind.SNAPSHOT
    assert found.plan.summary() == "1 table: 1 starting"


def test_a_table_without_change_starts_nothing(house: House):
    house.table()
    house.standing("items", "look", 0)
    found = tick(Runner(house.log))
    assert planned(found) == []
    assert found.plan.summary() == "1 table: 1 unchanged"
    assert found.changed == {}


def test_a_commit_starts_one_iteration_for_all_who_share(house: House):
    house.table()
    house.standing("items", "a", 0)
    house.standing("items", "b", 0)
    runner = Runner(house.log)
    assert planned(tick(runner)) == []
    house.commit()
    assert planned(tick(runner)) == [("items", "(v0, v1]", ("a", "b"))]


def test_only_the_changed_table_out_of_many_is_planned(house: House):
    for i in range(20):
        house.table(f"t{i}")
        house.standing(f"t{i}", "look", 0)
    runner = Runner(house.log)
    tick(runner)
    house.commit("t7")
    found = tick(runner)
    assert planned(found) == [("t7", "(v0, v1]", ("look",))]
    assert [key.table for key in found.changed] == ["t7"]
    assert found.plan.summary() == "20 tables: 1 starting, 19 unchanged"


def test_a_tick_reads_only_the_rows_that_changed(house: House):
    for i in range(5):
        house.table(f"t{i}")
        house.standing(f"t{i}", "look", 0)
    runner = Runner(house.log)
    tick(runner)
    before = dict(runner.jobs)
    house.set("t3", "look", attempt=2)
    tick(runner)
    again = {job.key.table for i, job in runner.jobs.items() if job is not before[i]}
    assert again == {"t3"}
    # A row changed behind the log's back, without a change number, is not read again.
    house.database("update mo_iscp_log set attempt = 9")
    tick(runner)
    assert max(job.attempt for job in runner.jobs.values()) == 2


@pytest.mark.parametrize("commit", ["optimize", "set_property"])
def test_a_commit_without_data_moves_the_watermark_in_memory_only(house: House, commit: str):
    house.table()
    house.commit()
    job = house.standing("items", "look", 1)
    runner = Runner(house.log)
    tick(runner)
    version = getattr(house, commit)()
    assert version == 2
    found = tick(runner)
    assert planned(found) == []
    assert runner.jobs[job.job_id].watermark.version == 2
    assert house.job().watermark.version == 1
    assert [(row.job_id, to.version) for row, to in runner.moved()] == [(job.job_id, 2)]
    # The next window starts where memory says.
    house.commit()
    assert planned(tick(runner)) == [("items", "(v2, v3]", ("look",))]


def test_a_row_that_changes_keeps_the_watermark_that_memory_knows(house: House):
    house.table()
    house.commit()
    job = house.standing("items", "look", 1)
    runner = Runner(house.log)
    house.set_property()
    tick(runner)
    house.set("items", "look", attempt=1)
    tick(runner)
    assert runner.jobs[job.job_id].attempt == 1
    assert runner.jobs[job.job_id].watermark.version == 2


def test_a_watermark_that_the_log_sets_back_is_believed(house: House):
    house.table()
    house.commit()
    house.standing("items", "look", 1)
    runner = Runner(house.log)
    house.set_property()
    tick(runner)
    house.set("items", "look", watermark=house.ts("items", 0))
    assert planned(tick(runner)) == [("items", "(v0, v2]", ("look",))]


def test_after_a_restart_it_begins_where_the_log_says(house: House):
    house.table()
    job = house.standing("items", "look", 0)
    house.set_property()
    first = Runner(house.log)
    tick(first)
    assert first.jobs[job.job_id].watermark.version == 1
    second = Runner(house.log)
    assert second.jobs == {}
    house.commit()
    assert planned(tick(second)) == [("items", "(v0, v2]", ("look",))]


def test_a_periodic_job_waits_for_its_interval_and_not_longer(house: House):
    house.table()
    house.standing("items", "look", 0, trigger={"kind": "periodic", "interval": "1h"})
    runner = Runner(house.log)
    house.commit()
    found = tick(runner)
    assert planned(found) == []
    assert "due in" in found.plan.summary()
    later = runner.tick([], now() + timedelta(hours=1, seconds=1))
    assert planned(later) == [("items", "(v0, v1]", ("look",))]


def test_an_altered_interval_counts_from_the_next_tick(house: House):
    house.table()
    house.standing("items", "look", 0, trigger={"kind": "periodic", "interval": "1h"})
    runner = Runner(house.log)
    house.commit()
    in_an_hour = now() + timedelta(hours=1, seconds=1)
    tick(runner)
    api.update_job_spec("shop.items", "look", {"trigger": {"interval": "2h"}}, log=house.log)
    assert planned(runner.tick([], in_an_hour)) == []


def test_a_row_from_a_newer_version_is_reported_and_the_others_go_on(house: House):
    house.table()
    house.standing("items", "good", 0)
    bad = house.standing("items", "odd", 0)
    house.database(
        "update mo_iscp_log set job_spec = ? where job_id = ?",
        '{"type": "lookup", "sparkle": 9}',
        bad.job_id,
    )
    house.commit()
    found = tick(Runner(house.log))
    assert planned(found) == [("items", "(v0, v1]", ("good",))]
    assert [row.key.name for row in found.unreadable] == ["odd"]
    assert "sparkle" in found.unreadable[0].reason


def test_an_unreadable_row_is_no_longer_reported_once_it_can_be_read(house: House):
    house.table()
    bad = house.standing("items", "odd", 0)
    house.database("update mo_iscp_log set job_state = 'dancing'")
    runner = Runner(house.log)
    assert [row.key.name for row in tick(runner).unreadable] == ["odd"]
    house.database("update mo_iscp_log set job_state = 'completed', change_seq = change_seq + 1000")
    assert tick(runner).unreadable == ()
    assert bad.job_id in runner.jobs


def test_an_unreadable_row_is_no_longer_reported_once_it_is_dropped(house: House):
    house.table()
    bad = house.standing("items", "odd", 0)
    house.database("update mo_iscp_log set job_state = 'dancing'")
    runner = Runner(house.log)
    assert [row.key.name for row in tick(runner).unreadable] == ["odd"]
    assert api.unregister_job("shop.items", bad.key.name, log=house.log)
    assert tick(runner).unreadable == ()


def test_a_table_that_cant_be_read_is_reported_and_the_others_go_on(house: House):
    for name in ("bad", "good"):
        house.table(name)
        house.standing(name, "look", 0)
        house.commit(name)
    broken = house.path("bad") / "_delta_log" / f"{1:020d}.json"
    whole = broken.read_bytes()
    broken.write_bytes(b'{"add": {')
    runner = Runner(house.log)
    found = tick(runner)
    assert planned(found) == [("good", "(v0, v1]", ("look",))]
    assert [key.table for key in found.unprobed] == ["bad"]
    assert found.plan.reason(JobKey("sys", "shop", "bad", "look")).startswith("probe failed")
    assert "1 unreadable" in found.plan.summary()
    broken.write_bytes(whole)
    assert ("bad", "(v0, v1]", ("look",)) in planned(tick(runner))


def test_a_corrupt_last_checkpoint_stops_nothing(house: House):
    house.table()
    house.standing("items", "look", 0)
    (house.path("items") / "_delta_log" / "_last_checkpoint").write_text("{ not json")
    house.commit()
    assert planned(tick(Runner(house.log))) == [("items", "(v0, v1]", ("look",))]


def test_a_table_that_is_gone_fails_its_jobs_for_good(house: House):
    for name in ("gone", "here"):
        house.table(name)
        house.standing(name, "look", 0)
    runner = Runner(house.log)
    tick(runner)
    shutil.rmtree(house.path("gone"))
    house.commit("here")
    found = tick(runner)
    assert planned(found) == [("here", "(v0, v1]", ("look",))]
    (error,) = found.plan.failures.values()
    assert isinstance(error, SourceTableMissing)
    assert "sys/shop/gone" in str(error)


def test_a_table_that_was_made_anew_fails_its_jobs_for_good(house: House):
    house.table()
    house.standing("items", "look", 0)
    runner = Runner(house.log)
    tick(runner)
    shutil.rmtree(house.path("items"))
    house.commit()
    (error,) = tick(runner).plan.failures.values()
    assert isinstance(error, SourceTableReplaced)


def test_a_table_that_was_dropped_and_added_again_is_followed_as_it_is_now(house: House):
    house.table()
    house.standing("items", "look", 0)
    runner = Runner(house.log)
    tick(runner)
    api.unregister_job("shop.items", "look", log=house.log)
    api.drop_table("shop.items", log=house.log)
    shutil.rmtree(house.path("items"))
    house.table("items")
    house.register()
    found = tick(runner)
    assert found.plan.failures == {}
    assert planned(found) == [("items", "(0, v0]", ("look",))]


def test_a_table_that_moved_elsewhere_is_asked_there(house: House, tmp_path: Path):
    house.table()
    house.standing("items", "look", 0)
    runner = Runner(house.log)
    tick(runner)
    api.unregister_job("shop.items", "look", log=house.log)
    api.drop_table("shop.items", log=house.log)
    shutil.copytree(house.path("items"), tmp_path / "moved")
    api.add_table("shop.items", uri=str(tmp_path / "moved"), pk=["id"], log=house.log)
    house.register()
    house.commit("items")
    assert planned(tick(runner)) == [("items", "(0, v0]", ("look",))]


def test_shards_share_all_tables_without_overlap(house: House):
    names = {f"t{i}" for i in range(24)}
    for name in names:
        house.table(name, rows=1)
        house.register(name)
    shards = [Runner(house.log, shard=i, shards=3) for i in range(3)]
    found = [[table for table, _, _ in planned(tick(runner))] for runner in shards]
    assert sorted(table for part in found for table in part) == sorted(names)
    assert all(found)


def test_only_the_named_tables_are_planned(house: House):
    keys = [house.table(name) for name in ("a", "b")]
    for name in ("a", "b"):
        house.register(name)
    assert planned(tick(Runner(house.log, only=frozenset(keys[:1])))) == [
        ("a", "(0, v0]", ("look",))
    ]


def test_a_job_that_is_not_loaded_is_left_out_and_in_nobodys_way(house: House):
    house.table()
    house.standing("items", "old", 0)
    house.standing("items", "young", 0)
    house.commit()
    runner = Runner(house.log, is_loaded=lambda key: key.name == "old")
    found = tick(runner)
    assert planned(found) == [("items", "(v0, v1]", ("old",))]
    assert [job.key.name for job in found.not_loaded] == ["young"]


def test_a_change_stays_untold_until_dagster_was_told(house: House):
    key = house.table()
    house.standing("items", "look", 0)
    runner = Runner(house.log)
    tick(runner)
    house.commit()
    assert tick(runner).changed[key].version == 1
    again = tick(runner)
    assert again.changed[key].version == 1
    runner.told(again)
    assert tick(runner).changed == {}


def test_a_log_that_is_away_for_a_while_loses_nothing(house: House):
    house.table("a")
    house.standing("a", "look", 0)
    runner = Runner(house.log)
    tick(runner)
    house.log.close()
    file, aside = house.settings.home / "iscp.db", house.settings.home / "aside.db"
    file.rename(aside)
    house.commit("a")
    with pytest.raises(LogUnavailable):
        tick(runner)
    house.log.close()
    file.unlink()
    aside.rename(file)
    with JobLog.open(house.settings) as other:
        api.update_job_spec("shop.a", "look", {"priority": 5}, log=other)
    found = tick(runner)
    assert planned(found) == [("a", "(v0, v1]", ("look",))]
    assert found.plan.iterations[0].priority == 5


def test_a_log_that_goes_away_in_the_middle_of_a_tick_loses_nothing(house: House):
    house.table("a")
    house.standing("a", "look", 0)
    runner = Runner(house.log)
    tick(runner)
    house.table("b")
    house.register("b")
    # The jobs can be read, the tables can't.
    house.database("alter table iscp_tables rename column uri to url")
    with pytest.raises(LogUnavailable):
        tick(runner)
    house.database("alter table iscp_tables rename column url to uri")
    assert planned(tick(runner)) == [("b", "(0, v0]", ("look",))]


def test_a_paused_job_starts_nothing_and_goes_on_when_resumed(house: House):
    house.table()
    house.standing("items", "look", 0)
    house.commit()
    api.pause_job("shop.items", "look", log=house.log)
    runner = Runner(house.log)
    found = tick(runner)
    assert planned(found) == []
    assert found.plan.summary() == "1 table: 1 paused"
    api.resume_job("shop.items", "look", log=house.log)
    assert planned(tick(runner)) == [("items", "(v0, v1]", ("look",))]


def test_a_dropped_job_leaves_the_runner(house: House):
    house.table()
    house.standing("items", "look", 0)
    runner = Runner(house.log)
    tick(runner)
    api.unregister_job("shop.items", "look", log=house.log)
    house.commit()
    assert tick(runner).plan.summary() == "no tables"
    assert runner.jobs == {}

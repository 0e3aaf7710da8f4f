"""Tests of reading what has changed, and only that."""

from __future__ import annotations

import pytest

from iscp_dagster.errors import ClaimLost
from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import TS, JobState
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster_tests.joblog.conftest import MANY_JOBS
from iscp_dagster_tests.joblog.databases import NOW, TABLE, add_job, filled_key
from iscp_dagster_tests.joblog.observing import explain, observed


def test_a_reader_gets_every_kind_of_change_once(log: JobLog) -> None:
    names = ("altered", "paused", "moved", "dropped", "untouched")
    keys = {name: add_job(log, name) for name in names}
    first = log.jobs.changes(0)
    assert {job.key for job in first.jobs} == set(keys.values())

    log.jobs.update_spec(keys["altered"], {"priority": 1})
    log.jobs.pause(keys["paused"], NOW)
    log.jobs.compare_and_set(log.jobs.get(keys["moved"]), watermark=TS(3, NOW))
    log.jobs.unregister(keys["dropped"], NOW)
    new = add_job(log, "new")

    second = log.jobs.changes(first.change_seq)
    expected = {new, *keys.values()} - {keys["untouched"]}
    assert {job.key for job in second.jobs} == expected
    assert {job.key for job in second.jobs if job.drop_at} == {keys["dropped"]}
    assert log.jobs.changes(second.change_seq).jobs == ()
    assert log.jobs.changes(second.change_seq).change_seq == second.change_seq


def test_a_row_that_changed_twice_comes_once_as_it_is_now(log: JobLog) -> None:
    key = add_job(log, "copy")
    seen = log.jobs.changes(0).change_seq
    log.jobs.compare_and_set(log.jobs.get(key), state=JobState.PENDING)
    log.jobs.compare_and_set(log.jobs.get(key), state=JobState.RUNNING)
    assert log.jobs.changes(seen).jobs == (log.jobs.get(key),)


def test_a_shared_iteration_s_jobs_all_come_together(log: JobLog) -> None:
    jobs = [log.jobs.get(add_job(log, name)) for name in ("one", "two", "three")]
    seen = log.jobs.changes(0).change_seq
    log.jobs.compare_and_set_many((job, {"state": JobState.PENDING}) for job in jobs)
    assert {job.key for job in log.jobs.changes(seen).jobs} == {job.key for job in jobs}


def test_a_reader_that_begins_does_not_see_what_is_gone(log: JobLog) -> None:
    log.jobs.unregister(add_job(log, "gone"), NOW)
    key = add_job(log, "here")
    assert [job.key for job in log.jobs.changes(0).jobs] == [key]


def test_what_changed_nothing_is_no_change(log: JobLog) -> None:
    key = add_job(log, "copy")
    seen = log.jobs.changes(0).change_seq
    log.jobs.register(key, JobSpec(type="mirror"), NOW)
    log.jobs.unregister(TABLE.job("never"), NOW)
    log.jobs.resume(key)
    log.jobs.repair(key)
    assert log.jobs.changes(seen).jobs == ()


def test_of_100_000_jobs_a_reader_reads_the_10_that_changed(full_log: JobLog) -> None:
    seen = full_log.jobs.changes(MANY_JOBS - 1).change_seq
    changed = [filled_key(number) for number in range(5_000, MANY_JOBS, 10_000)]
    for key in changed:
        full_log.jobs.compare_and_set(full_log.jobs.get(key), watermark=TS(1, NOW))

    with observed(full_log) as database:
        found = full_log.jobs.changes(seen)

    assert {job.key for job in found.jobs} == set(changed)
    assert len(changed) == database.rows == 10
    assert len(database.statements) == database.statements[0][0].startswith("SELECT") == 1
    assert database.steps < 50  # in hundreds; a look at each of 100,000 rows takes over 1,000
    plan = explain(full_log, *database.statements[0])
    assert "mo_iscp_log_changes" in plan
    assert "SCAN mo_iscp_log" not in plan
    assert "Seq Scan" not in plan


def test_of_100_000_jobs_a_reader_without_news_reads_none(full_log: JobLog) -> None:
    seen = full_log.jobs.changes(MANY_JOBS - 1).change_seq
    with observed(full_log) as database:
        assert full_log.jobs.changes(seen).jobs == ()
    assert database.rows == 0
    assert database.steps < 50


def test_a_write_to_one_of_100_000_jobs_looks_at_few_rows(full_log: JobLog) -> None:
    key = filled_key(77_777)
    with observed(full_log) as database:
        job = full_log.jobs.get(key)
        full_log.jobs.compare_and_set(job, attempt=1)
        full_log.jobs.update_spec(key, {"priority": 1})
        full_log.jobs.unregister(key, NOW)
        full_log.jobs.register(key, JobSpec(type="mirror"), NOW)
        with pytest.raises(ClaimLost):
            full_log.jobs.compare_and_set(job, attempt=2)
        found = full_log.jobs.list(table=key.table_key)
    assert len(found) == 10
    assert database.rows < 40
    assert database.steps < 100
    for statement, parameters in database.statements:
        if statement.startswith(("SELECT", "UPDATE")):
            plan = explain(full_log, statement, parameters)
            assert "SCAN mo_iscp_log" not in plan, statement
            assert "SCAN iscp_tables" not in plan, statement
            assert '"Relation Name": "mo_iscp_log"' not in _sequential(plan), statement


def _sequential(plan: str) -> str:
    """The part of a PostgreSQL plan after a sequential scan, if there is one."""
    return plan.partition('"Seq Scan"')[2]

"""Tests of registering, listing and dropping jobs and tables."""

from __future__ import annotations

from datetime import timedelta

import pytest

from iscp_dagster.errors import ClaimLost, UnknownJob, UnknownTable, UsageError
from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import TS, Job, JobState, JobStatus, Stage, TableKey
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster_tests.joblog.databases import NOW, TABLE, add_job, add_table, dump

LATER = NOW + timedelta(hours=1)
SPEC = JobSpec(type="mirror", columns=("id", "note"), options={"where": "note <> 'O''Brien'"})


def test_a_new_job_is_completed_at_watermark_zero(log: JobLog) -> None:
    assert log.jobs.register(TABLE.job("copy"), SPEC, NOW) is True
    job = log.jobs.get(TABLE.job("copy"))
    assert (job.state, job.watermark, job.stage) == (JobState.COMPLETED, TS.zero(), Stage.INIT)
    assert (job.status, job.attempt, job.next_attempt_at) == (JobStatus(), 0, None)
    assert (job.spec, job.create_at, job.drop_at, job.paused_at) == (SPEC, NOW, None, None)
    assert job.live_job_id == job.job_id


def test_registering_a_living_name_is_false_and_changes_nothing(log: JobLog) -> None:
    key = add_job(log, "copy")
    before = log.jobs.get(key)
    assert log.jobs.register(key, JobSpec(type="lookup"), LATER) is False
    assert log.jobs.get(key) == before


def test_a_dropped_name_comes_back_under_a_larger_id_without_the_old_progress(log: JobLog) -> None:
    key = add_job(log, "copy")
    first = log.jobs.compare_and_set(
        log.jobs.get(key),
        watermark=TS(42, NOW),
        stage=Stage.TAIL,
        attempt=3,
        next_attempt_at=LATER,
        status=JobStatus(error_code=7, error_msg="disk full"),
    )
    log.jobs.pause(key, NOW)
    log.jobs.unregister(key, LATER)

    assert log.jobs.register(key, SPEC, LATER) is True

    second = log.jobs.get(key)
    assert second.job_id > first.job_id
    assert (second.watermark, second.stage, second.attempt) == (TS.zero(), Stage.INIT, 0)
    assert (second.status, second.next_attempt_at, second.paused_at) == (JobStatus(), None, None)
    assert second.create_at == LATER


def test_generations_grow_across_all_names(log: JobLog) -> None:
    ids = [log.jobs.get(add_job(log, name)).job_id for name in ("c", "a", "b")]
    log.jobs.unregister(TABLE.job("b"), NOW)
    ids.append(log.jobs.get(add_job(log, "b")).job_id)
    assert ids == sorted(set(ids))


def test_unregister_is_true_once(log: JobLog) -> None:
    key = add_job(log, "copy")
    assert log.jobs.unregister(key, LATER) is True
    assert log.jobs.unregister(key, LATER) is False
    assert log.jobs.unregister(TABLE.job("never"), LATER) is False
    with pytest.raises(UnknownJob, match="sys/shop/orders/copy"):
        log.jobs.get(key)


def test_unregister_fences_a_run_that_is_late(log: JobLog) -> None:
    key = add_job(log, "copy")
    running = log.jobs.compare_and_set(log.jobs.get(key), state=JobState.RUNNING)
    log.jobs.unregister(key, LATER)
    with pytest.raises(ClaimLost):
        log.jobs.compare_and_set(running, watermark=TS(9, LATER), state=JobState.COMPLETED)


def test_a_late_run_of_a_dropped_job_never_reaches_its_successor(log: JobLog) -> None:
    key = add_job(log, "copy")
    running = log.jobs.get(key)
    log.jobs.unregister(key, LATER)
    log.jobs.register(key, SPEC, LATER)
    successor = log.jobs.get(key)
    assert successor.lsn == running.lsn  # so that only the generation tells them apart
    with pytest.raises(ClaimLost):
        log.jobs.compare_and_set(running, watermark=TS(9, LATER))
    assert log.jobs.get(key) == successor


def test_a_dropped_row_keeps_when_it_was_dropped(log: JobLog) -> None:
    key = add_job(log, "copy")
    seen = log.jobs.changes(0)
    log.jobs.unregister(key, LATER)
    (dropped,) = log.jobs.changes(seen.change_seq).jobs
    assert (dropped.key, dropped.drop_at) == (key, LATER)


def test_registering_on_an_unknown_table_is_refused_and_writes_nothing(
    log: JobLog, log_url: str
) -> None:
    before = dump(log_url)
    with pytest.raises(UnknownTable, match="sys/shop/nowhere"):
        log.jobs.register(TableKey("sys", "shop", "nowhere").job("copy"), SPEC, NOW)
    assert dump(log_url) == before


def test_jobs_are_listed_by_state_account_and_table_in_the_order_of_their_keys(
    log: JobLog,
) -> None:
    other = add_table(log, TableKey("acme", "shop", "orders"))
    third = add_table(log, TableKey("sys", "shop", "Items"))
    names = ("b", "a-b", "a_b", "B", "_x", "a", "0")
    here = [add_job(log, name) for name in names]
    there = [add_job(log, name, other) for name in ("z", "Y")]
    beside = [add_job(log, "m", third)]
    log.jobs.unregister(add_job(log, "gone"), NOW)
    broken = log.jobs.get(here[0])
    log.jobs.compare_and_set(broken, state=JobState.ERROR)

    assert [job.key for job in log.jobs.list()] == sorted([*here, *there, *beside])
    assert [job.key for job in log.jobs.list(state=JobState.ERROR)] == [broken.key]
    assert broken.key not in [job.key for job in log.jobs.list(state=JobState.COMPLETED)]
    assert [job.key for job in log.jobs.list(account="acme")] == sorted(there)
    assert [job.key for job in log.jobs.list(table=TABLE)] == sorted(here)
    assert list(log.jobs.list(table=TABLE, state=JobState.RUNNING)) == []


def test_two_accounts_may_use_the_same_names(log: JobLog) -> None:
    other = add_table(log, TableKey("acme", "shop", "orders"))
    mine, theirs = add_job(log, "copy"), add_job(log, "copy", other)
    log.jobs.unregister(theirs, NOW)
    assert isinstance(log.jobs.get(mine), Job)
    with pytest.raises(UnknownJob):
        log.jobs.get(theirs)


def test_a_table_is_recorded_once(log: JobLog) -> None:
    facts = {"uri": "s3://lake/items", "pk": ("a", "b"), "delta_id": "d-7"}
    key = TableKey("sys", "shop", "items")
    assert log.tables.add(key, **facts, now=NOW) is True
    assert log.tables.add(key, **facts, now=LATER) is False
    table = log.tables.get(key)
    assert (table.uri, table.pk, table.delta_id) == ("s3://lake/items", ("a", "b"), "d-7")
    assert table.added_at == NOW
    with pytest.raises(UsageError, match="recorded already"):
        log.tables.add(key, **{**facts, "uri": "s3://lake/other"}, now=LATER)
    assert log.tables.get(key) == table


def test_tables_are_listed_by_account(log: JobLog) -> None:
    acme = add_table(log, TableKey("acme", "shop", "orders"))
    assert [table.key for table in log.tables.list()] == [acme, TABLE]
    assert [table.key for table in log.tables.list("acme")] == [acme]


def test_a_table_with_jobs_is_not_dropped(log: JobLog) -> None:
    key = add_job(log, "copy")
    with pytest.raises(UsageError, match="still has jobs"):
        log.tables.drop(TABLE, NOW)
    log.jobs.unregister(key, NOW)
    assert log.tables.drop(TABLE, NOW) is True
    assert log.tables.drop(TABLE, NOW) is False
    with pytest.raises(UnknownTable):
        log.tables.get(TABLE)


def test_a_table_that_comes_back_has_a_new_id_and_none_of_the_old_jobs(log: JobLog) -> None:
    before = log.tables.get(TABLE).table_id
    log.jobs.unregister(add_job(log, "copy"), NOW)
    log.tables.drop(TABLE, NOW)
    add_table(log)
    assert log.tables.get(TABLE).table_id > before
    assert list(log.jobs.list()) == []
    assert log.jobs.register(TABLE.job("copy"), SPEC, LATER) is True
    assert [job.key for job in log.jobs.list(table=TABLE)] == [TABLE.job("copy")]

"""Tests of the one way to write state and watermark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from iscp_dagster.errors import ClaimLost
from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import TS, JobState, JobStatus, Stage
from iscp_dagster_tests.joblog.databases import NOW, add_job, dump

LATER = NOW + timedelta(minutes=5)


def test_a_write_moves_the_token_and_is_read_back_whole(log: JobLog) -> None:
    key = add_job(log, "copy")
    before = log.jobs.get(key)
    status = JobStatus(
        from_ts=TS.zero(),
        to_ts=TS(8, NOW),
        start_at=NOW,
        end_at=LATER,
        run_id="0198-abc",
        error_code=3,
        error_msg='it\'s "quoted",\nin two lines: Größe 大小 \x00',
        progress="12 of 64 vnodes",
    )
    written = log.jobs.compare_and_set(
        before,
        state=JobState.CANCELED,
        watermark=TS(8, NOW),
        stage=Stage.BACKFILL,
        status=status,
        attempt=1,
        next_attempt_at=LATER,
    )
    assert written == log.jobs.get(key)
    assert written.lsn > before.lsn
    assert written.change_seq > before.change_seq
    assert (written.state, written.stage, written.attempt) == (
        JobState.CANCELED,
        Stage.BACKFILL,
        1,
    )
    assert str(written.watermark) == "2026-11-18T05:49:00.123Z-8"
    assert (written.status, written.next_attempt_at) == (status, LATER)


def test_a_claim_that_somebody_else_took_is_lost_and_writes_nothing(
    log: JobLog, log_url: str
) -> None:
    key = add_job(log, "copy")
    read = log.jobs.get(key)
    log.jobs.compare_and_set(read, state=JobState.PENDING)
    before = dump(log_url)["mo_iscp_log"]
    with pytest.raises(ClaimLost, match="sys/shop/orders/copy"):
        log.jobs.compare_and_set(read, state=JobState.RUNNING, watermark=TS(5, NOW))
    assert dump(log_url)["mo_iscp_log"] == before


def test_a_lost_claim_is_no_news_to_subscribers(log: JobLog) -> None:
    key = add_job(log, "copy")
    read = log.jobs.get(key)
    log.jobs.compare_and_set(read, state=JobState.PENDING)
    seen = log.jobs.changes(0).change_seq
    with pytest.raises(ClaimLost):
        log.jobs.compare_and_set(read, state=JobState.RUNNING)
    assert log.jobs.changes(seen).jobs == ()


def test_each_job_of_a_shared_iteration_has_its_own_token(log: JobLog) -> None:
    one, two, three = (log.jobs.get(add_job(log, name)) for name in ("one", "two", "three"))
    one = log.jobs.compare_and_set(log.jobs.compare_and_set(one), state=JobState.RUNNING)
    assert one.lsn != two.lsn
    two = log.jobs.compare_and_set(two, state=JobState.RUNNING)
    log.jobs.update_spec(three.key, {"priority": 1}, interrupt=True)

    end = {"watermark": TS(6, NOW), "state": JobState.COMPLETED}
    written = log.jobs.compare_and_set_many([(one, end), (two, end), (three, end)])

    assert written == [log.jobs.get(one.key), log.jobs.get(two.key), None]
    assert [log.jobs.get(job.key).watermark for job in (one, two)] == [TS(6), TS(6)]
    assert log.jobs.get(three.key).watermark == TS.zero()


def test_each_job_of_a_shared_iteration_has_its_own_outcome(log: JobLog) -> None:
    good, bad = (log.jobs.get(add_job(log, name)) for name in ("good", "bad"))
    log.jobs.compare_and_set_many(
        [
            (good, {"watermark": TS(6, NOW)}),
            (bad, {"attempt": 1, "status": JobStatus(error_code=5, error_msg="no space")}),
        ]
    )
    good, bad = log.jobs.get(good.key), log.jobs.get(bad.key)
    assert (good.watermark, good.attempt, good.status) == (TS(6), 0, JobStatus())
    assert (bad.watermark, bad.attempt, bad.status.error_msg) == (TS.zero(), 1, "no space")


def test_a_flush_of_the_watermark_leaves_stage_error_and_attempt_alone(log: JobLog) -> None:
    key = add_job(log, "copy", priority=5)
    read = log.jobs.compare_and_set(
        log.jobs.get(key),
        state=JobState.CANCELED,
        watermark=TS(5, NOW),
        stage=Stage.TAIL,
        attempt=3,
        next_attempt_at=LATER,
        status=JobStatus(run_id="r-9", error_code=12, error_msg="out of memory"),
    )
    log.jobs.pause(key, NOW)
    log.jobs.compare_and_set(read, watermark=TS(7, LATER))
    job = log.jobs.get(key)
    assert job.watermark == TS(7)
    assert (job.state, job.stage, job.attempt) == (JobState.CANCELED, Stage.TAIL, 3)
    assert (job.next_attempt_at, job.status) == (LATER, read.status)
    assert (job.paused_at, job.spec) == (NOW, read.spec)


def test_a_flush_that_comes_too_late_writes_nothing(log: JobLog) -> None:
    key = add_job(log, "copy")
    idle = log.jobs.get(key)
    ran = log.jobs.compare_and_set(idle, watermark=TS(9, NOW))
    with pytest.raises(ClaimLost):
        log.jobs.compare_and_set(idle, watermark=TS(7, NOW))
    assert log.jobs.get(key) == ran


@pytest.mark.parametrize("field", ["spec", "job_id", "paused_at", "drop_at", "lsn"])
def test_what_the_token_does_not_own_is_not_written_with_it(log: JobLog, field: str) -> None:
    job = log.jobs.get(add_job(log, "copy"))
    with pytest.raises(TypeError, match=field):
        log.jobs.compare_and_set(job, **{field: getattr(job, field)})
    assert log.jobs.get(job.key) == job


def test_times_are_read_back_in_utc_whatever_zone_they_were_written_in(log: JobLog) -> None:
    there = datetime(2026, 11, 18, 13, 49, tzinfo=timezone(timedelta(hours=8)))
    written = log.jobs.compare_and_set(log.jobs.get(add_job(log, "copy")), next_attempt_at=there)
    assert written.next_attempt_at == datetime(2026, 11, 18, 5, 49, tzinfo=UTC)
    assert written.next_attempt_at is not None
    assert written.next_attempt_at.utcoffset() == timedelta(0)

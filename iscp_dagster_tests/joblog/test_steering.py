"""Tests of what a user does to a living job: alter, pause, resume, repair."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from iscp_dagster.errors import ClaimLost, UnknownJob, UsageError
from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import TS, JobState, JobStatus, Stage
from iscp_dagster.rules.spec import TriggerSpec
from iscp_dagster_tests.joblog.databases import NOW, TABLE, add_job, dump

LATER = NOW + timedelta(minutes=5)
EVERY_30_S = TriggerSpec(kind="periodic", interval=timedelta(seconds=30), independent=True)


def test_fields_left_empty_keep_their_value(log: JobLog) -> None:
    key = add_job(
        log,
        "copy",
        priority=7,
        description="orders, copied",
        owners=("team:data",),
        columns=("id",),
    )
    before = log.jobs.get(key).spec
    patch: dict[str, Any] = {
        "priority": None,
        "description": "",
        "owners": [],
        "trigger": {},
        "columns": (),
        "timeout": "5m",
    }
    log.jobs.update_spec(key, patch)
    assert log.jobs.get(key).spec == before.model_copy(update={"timeout": timedelta(minutes=5)})


def test_zero_is_a_value_and_not_an_empty_field(log: JobLog) -> None:
    key = add_job(log, "copy", priority=7)
    log.jobs.update_spec(key, {"priority": 0})
    assert log.jobs.get(key).spec.priority == 0


def test_a_trigger_is_altered_field_by_field(log: JobLog) -> None:
    key = add_job(log, "copy", trigger=EVERY_30_S)
    log.jobs.update_spec(key, {"trigger": {"interval": "1m", "share": True}})
    assert log.jobs.get(key).spec.trigger == TriggerSpec(
        kind="periodic", interval=timedelta(minutes=1), share=True, independent=True
    )


def test_another_kind_of_trigger_leaves_behind_what_belonged_to_the_old_one(log: JobLog) -> None:
    key = add_job(log, "copy", trigger=EVERY_30_S)
    log.jobs.update_spec(key, {"trigger": {"kind": "greedy"}})
    assert log.jobs.get(key).spec.trigger == TriggerSpec(kind="greedy", independent=True)


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"type": "fulltext"}, "type"),
        ({"columns": ["other"]}, "columns"),
        ({"options": {"where": "true"}}, "options"),
        ({"priority": 101}, "priority"),
        ({"timeout": "soon"}, "timeout"),
        ({"trigger": {"interval": "5m"}}, "interval"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused_by_name_and_writes_nothing(
    log: JobLog, log_url: str, patch: dict[str, Any], field: str
) -> None:
    key = add_job(log, "copy", columns=("id",))
    before = dump(log_url)
    with pytest.raises(UsageError, match=field):
        log.jobs.update_spec(key, {"description": "half of it", **patch})
    assert dump(log_url) == before


def test_an_alter_returns_the_job_as_it_stands(log: JobLog) -> None:
    key = add_job(log, "copy")
    assert log.jobs.update_spec(key, {"priority": 3}) == log.jobs.get(key)
    assert log.jobs.update_spec(key, {"priority": 4}, interrupt=True) == log.jobs.get(key)


def test_an_alter_leaves_the_running_iteration_its_claim(log: JobLog) -> None:
    key = add_job(log, "copy")
    running = log.jobs.compare_and_set(log.jobs.get(key), state=JobState.RUNNING)
    log.jobs.update_spec(key, {"trigger": {"kind": "greedy"}})
    log.jobs.compare_and_set(running, state=JobState.COMPLETED, watermark=TS(3, NOW))
    job = log.jobs.get(key)
    assert (job.watermark, job.state) == (TS(3), JobState.COMPLETED)
    assert job.spec.trigger.kind == "greedy"


def test_a_claim_that_is_written_shows_the_spec_and_pause_of_the_moment(log: JobLog) -> None:
    key = add_job(log, "copy", trigger=EVERY_30_S)
    running = log.jobs.compare_and_set(log.jobs.get(key), state=JobState.RUNNING)
    log.jobs.update_spec(key, {"trigger": {"interval": "1h"}})
    log.jobs.pause(key, LATER)
    written = log.jobs.compare_and_set(running, state=JobState.COMPLETED)
    assert written == log.jobs.get(key)
    assert written.spec.trigger.interval == timedelta(hours=1)
    assert written.paused_at == LATER


def test_an_interrupting_alter_fences_the_running_iteration(log: JobLog) -> None:
    key = add_job(log, "copy")
    running = log.jobs.compare_and_set(log.jobs.get(key), state=JobState.RUNNING)
    log.jobs.update_spec(key, {"priority": 1}, interrupt=True)
    altered = log.jobs.get(key)
    assert altered.lsn > running.lsn
    with pytest.raises(ClaimLost):
        log.jobs.compare_and_set(running, watermark=TS(3, NOW))
    assert log.jobs.get(key) == altered


def test_an_unknown_job_is_not_steered(log: JobLog) -> None:
    log.jobs.unregister(add_job(log, "gone"), NOW)
    for name in ("gone", "never"):
        key = TABLE.job(name)
        for steer in (
            lambda key=key: log.jobs.update_spec(key, {"priority": 1}),
            lambda key=key: log.jobs.pause(key, NOW),
            lambda key=key: log.jobs.resume(key),
            lambda key=key: log.jobs.repair(key),
        ):
            with pytest.raises(UnknownJob, match=name):
                steer()


def test_pause_and_resume_are_true_once_and_touch_nothing_else(log: JobLog) -> None:
    key = add_job(log, "copy")
    running = log.jobs.compare_and_set(log.jobs.get(key), state=JobState.RUNNING, attempt=2)
    assert log.jobs.pause(key, NOW) is True
    assert log.jobs.pause(key, LATER) is False
    paused = log.jobs.get(key)
    assert paused.paused_at == NOW
    assert (paused.state, paused.attempt, paused.lsn) == (JobState.RUNNING, 2, running.lsn)
    assert log.jobs.resume(key) is True
    assert log.jobs.resume(key) is False
    assert log.jobs.get(key).paused_at is None


def test_repair_clears_the_error_and_goes_on_from_the_watermark(log: JobLog) -> None:
    key = add_job(log, "copy")
    broken = log.jobs.compare_and_set(
        log.jobs.get(key),
        state=JobState.ERROR,
        watermark=TS(12, NOW),
        stage=Stage.TAIL,
        attempt=4,
        next_attempt_at=LATER,
        status=JobStatus(run_id="r-1", error_code=10_041, error_msg="column note is gone"),
    )
    assert log.jobs.repair(key) is True
    job = log.jobs.get(key)
    assert (job.state, job.attempt, job.next_attempt_at) == (JobState.COMPLETED, 0, None)
    assert (job.status.error_code, job.status.error_msg, job.status.run_id) == (0, "", "r-1")
    assert (job.watermark, job.stage) == (TS(12), Stage.TAIL)
    with pytest.raises(ClaimLost):
        log.jobs.compare_and_set(broken, state=JobState.ERROR)


def test_repair_ends_the_wait_of_a_job_that_backs_off(log: JobLog) -> None:
    key = add_job(log, "copy")
    log.jobs.compare_and_set(log.jobs.get(key), attempt=5, next_attempt_at=LATER)
    assert log.jobs.repair(key) is True
    assert log.jobs.get(key).next_attempt_at is None


def test_repair_of_a_healthy_job_is_false_and_writes_nothing(log: JobLog) -> None:
    key = add_job(log, "copy")
    before = log.jobs.get(key)
    assert log.jobs.repair(key) is False
    assert log.jobs.get(key) == before


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING])
def test_repair_leaves_an_iteration_in_flight_its_claim(log: JobLog, state: JobState) -> None:
    key = add_job(log, "copy")
    flying = log.jobs.compare_and_set(log.jobs.get(key), state=state, attempt=2)
    assert log.jobs.repair(key) is False
    log.jobs.compare_and_set(flying, state=JobState.COMPLETED, attempt=0)

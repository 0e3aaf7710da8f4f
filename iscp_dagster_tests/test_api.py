"""Tests of the functions behind the commands, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from iscp_dagster import api
from iscp_dagster.errors import UnknownDeltaTable, UnknownJob, UnknownTable, UsageError
from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import TS, Job, JobState, JobStatus, TableKey
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster_tests.joblog.conftest import DATABASES, fresh
from iscp_dagster_tests.joblog.databases import dump
from iscp_dagster_tests.shop import NOW, make_delta, version_of

MIRROR = {"type": "mirror"}
PERIODIC = {"type": "mirror", "trigger": {"kind": "periodic", "interval": "5m"}}
KEY = TableKey("sys", "shop", "items")


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh log."""
    database: AbstractContextManager[str] = fresh(request.param, tmp_path)
    with database as url:
        yield url


@pytest.fixture
def items(tmp_path: Path) -> Path:
    """A Delta table."""
    return make_delta(tmp_path / "items")


@pytest.fixture
def log(url: str, items: Path) -> Iterator[JobLog]:
    """A log with the table in it."""
    with JobLog(url) as log:
        assert api.add_table("shop.items", uri=str(items), pk=["id"], log=log) is True
        yield log


def test_without_a_log_at_hand_the_settings_name_it(
    url: str, items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ISCP_LOG_URL", url)
    assert api.add_table("shop.items", uri=str(items), pk=["id"]) is True
    assert api.register_job("shop.items", "copy", MIRROR) is True
    with JobLog(url) as log:
        assert [job.key for job in log.jobs.list()] == [KEY.job("copy")]
    assert [table.key for table in api.get_tables()] == [KEY]


def test_register_is_true_then_false_and_unregister_too(log: JobLog) -> None:
    assert api.register_job("shop.items", "copy", MIRROR, log=log) is True
    assert api.register_job("shop.items", "copy", MIRROR, log=log) is False
    assert api.unregister_job("shop.items", "copy", log=log) is True
    assert api.unregister_job("shop.items", "copy", log=log) is False
    assert api.get_jobs(log=log) == []


def test_a_new_job_is_completed_with_watermark_zero(log: JobLog) -> None:
    api.register_job("shop.items", "copy", JobSpec(type="mirror", priority=3), log=log)
    job = api.get_job("shop.items", "copy", log=log)
    assert (job.state, job.watermark, job.attempt) == (JobState.COMPLETED, TS.zero(), 0)
    assert job.spec == JobSpec(type="mirror", priority=3)
    assert api.get_job_status("shop.items", "copy", log=log) == JobStatus()


def test_a_name_registered_again_inherits_no_progress(log: JobLog) -> None:
    api.register_job("shop.items", "copy", MIRROR, log=log)
    first = api.get_job("shop.items", "copy", log=log)
    status = JobStatus(error_code=5, error_msg="full")
    log.jobs.compare_and_set(first, watermark=TS(7, NOW), attempt=4, status=status)
    api.pause_job("shop.items", "copy", log=log)
    api.unregister_job("shop.items", "copy", log=log)
    api.register_job("shop.items", "copy", MIRROR, log=log)
    again = api.get_job("shop.items", "copy", log=log)
    assert again.job_id > first.job_id
    assert (again.watermark, again.attempt, again.status) == (TS.zero(), 0, JobStatus())
    assert again.paused_at is None


def test_an_altered_interval_holds_at_once_and_leaves_the_running_iteration_its_claim(
    log: JobLog,
) -> None:
    api.register_job("shop.items", "copy", PERIODIC, log=log)
    running = log.jobs.compare_and_set(
        api.get_job("shop.items", "copy", log=log), state=JobState.RUNNING
    )
    altered = api.update_job_spec("shop.items", "copy", {"trigger": {"interval": "1h"}}, log=log)
    assert altered.spec.trigger.kind == "periodic"
    assert altered == api.get_job("shop.items", "copy", log=log)
    ended = log.jobs.compare_and_set(running, state=JobState.COMPLETED, watermark=TS(1, NOW))
    assert ended.spec == altered.spec
    assert ended.spec.trigger.interval != running.spec.trigger.interval


def test_an_interrupting_change_takes_the_claim_from_what_runs(log: JobLog) -> None:
    api.register_job("shop.items", "copy", MIRROR, log=log)
    running = log.jobs.compare_and_set(
        api.get_job("shop.items", "copy", log=log), state=JobState.RUNNING
    )
    api.update_job_spec("shop.items", "copy", {"priority": 9}, interrupt=True, log=log)
    assert log.jobs.compare_and_set_many([(running, {"watermark": TS(1, NOW)})]) == [None]
    job = api.get_job("shop.items", "copy", log=log)
    assert (job.watermark, job.spec.priority) == (TS.zero(), 9)


def test_empty_fields_of_a_change_keep_their_value(log: JobLog) -> None:
    spec = {**PERIODIC, "owners": ["team:data"], "description": "d", "priority": 2}
    api.register_job("shop.items", "copy", spec, log=log)
    before = api.get_job("shop.items", "copy", log=log).spec
    patch = {"owners": [], "description": "", "priority": None, "trigger": {"kind": ""}}
    assert api.update_job_spec("shop.items", "copy", patch, log=log).spec == before


def test_jobs_are_listed_by_state_and_account(log: JobLog, items: Path) -> None:
    api.add_table("shop.items", uri=str(items), pk=["id"], account="other", log=log)
    api.register_job("shop.items", "copy", MIRROR, log=log)
    api.register_job("shop.items", "copy", MIRROR, account="other", log=log)
    ours = api.get_job("shop.items", "copy", log=log)
    log.jobs.compare_and_set(ours, state=JobState.ERROR)

    def listed(*state: JobState | str, **chosen: str) -> list[str]:
        return [str(job.key) for job in api.get_jobs(*state, **chosen, log=log)]  # pyright: ignore

    assert listed() == ["other/shop/items/copy", "sys/shop/items/copy"]
    assert listed("error") == listed(JobState.ERROR) == ["sys/shop/items/copy"]
    assert listed("completed", account="sys") == []
    assert listed(table="shop.items", account="other") == ["other/shop/items/copy"]
    with pytest.raises(UsageError, match="state"):
        listed("happy")


def test_pause_resume_and_repair_say_whether_they_changed_anything(log: JobLog) -> None:
    api.register_job("shop.items", "copy", MIRROR, log=log)
    assert api.pause_job("shop.items", "copy", log=log) is True
    assert api.pause_job("shop.items", "copy", log=log) is False
    assert api.resume_job("shop.items", "copy", log=log) is True
    assert api.resume_job("shop.items", "copy", log=log) is False
    assert api.repair_job("shop.items", "copy", log=log) is False
    broken = log.jobs.compare_and_set(
        api.get_job("shop.items", "copy", log=log),
        state=JobState.ERROR,
        watermark=TS(4, NOW),
        attempt=2,
        status=JobStatus(error_code=10_030, error_msg="gone"),
    )
    assert api.repair_job("shop.items", "copy", log=log) is True
    repaired = api.get_job("shop.items", "copy", log=log)
    assert (repaired.state, repaired.status, repaired.attempt) == ("completed", JobStatus(), 0)
    assert repaired.watermark == broken.watermark


def test_a_job_that_is_not_there_is_unknown_and_nothing_is_written(log: JobLog, url: str) -> None:
    before = dump(url)
    for function in (api.get_job, api.get_job_status, _alter, *_STEERING):
        with pytest.raises(UnknownJob, match="sys/shop/items/nosuch"):
            function("shop.items", "nosuch", log=log)
        with pytest.raises(UsageError, match="table: 'items'"):
            function("items", "nosuch", log=log)
    assert dump(url) == before


def test_a_spec_that_does_not_fit_is_refused_by_field(log: JobLog, url: str) -> None:
    before = dump(url)
    for spec, field in (
        ({"type": "nosuch"}, "type"),
        ({**MIRROR, "trigger": {"kind": "nosuch"}}, "trigger"),
        ({**MIRROR, "columns": ["colour"]}, "columns"),
        ({**MIRROR, "priority": 101}, "priority"),
        ({**MIRROR, "trigger": {"kind": "periodic", "interval": "soon"}}, "interval"),
        ({**MIRROR, "colour": "red"}, "colour"),
        (JobSpec(type="lookup"), "by"),
    ):
        with pytest.raises(UsageError, match=field):
            api.register_job("shop.items", "copy", spec, log=log)
    assert dump(url) == before


def test_an_unknown_table_is_refused(log: JobLog) -> None:
    with pytest.raises(UnknownTable, match="other/shop/items"):
        api.register_job("shop.items", "copy", MIRROR, account="other", log=log)


def test_a_table_is_recorded_once_and_what_is_none_never(
    log: JobLog, items: Path, tmp_path: Path
) -> None:
    assert api.add_table("shop.items", uri=f"{items}/", pk=["id"], log=log) is False
    with pytest.raises(UnknownDeltaTable):
        api.add_table("shop.more", uri=str(tmp_path), pk=["id"], log=log)
    off = make_delta(tmp_path / "off", feed=False)
    with pytest.raises(UsageError, match="--enable-cdf"):
        api.add_table("shop.more", uri=str(off), pk=["id"], log=log)
    assert version_of(off) == 0
    assert api.add_table("shop.more", uri=str(off), pk=["id"], enable_cdf=True, log=log) is True
    assert version_of(off) == 1
    assert [str(table.key) for table in api.get_tables(log=log)] == [
        "sys/shop/items",
        "sys/shop/more",
    ]


def test_a_table_with_jobs_stays_until_they_are_gone(log: JobLog) -> None:
    api.register_job("shop.items", "copy", MIRROR, log=log)
    with pytest.raises(UsageError, match="jobs"):
        api.drop_table("shop.items", log=log)
    api.unregister_job("shop.items", "copy", log=log)
    assert api.drop_table("shop.items", log=log) is True
    assert api.drop_table("shop.items", log=log) is False


def test_what_is_returned_can_not_be_changed(log: JobLog) -> None:
    api.register_job("shop.items", "copy", MIRROR, log=log)
    (job,) = api.get_jobs(log=log)
    assert isinstance(job, Job)
    with pytest.raises(AttributeError):
        job.attempt = 3  # pyright: ignore[reportAttributeAccessIssue]
    assert replace(job) == job


_STEERING = (api.pause_job, api.resume_job, api.repair_job)


def _alter(table: str, job: str, *, log: JobLog) -> Job:
    return api.update_job_spec(table, job, {"priority": 1}, log=log)


def test_a_consumer_says_itself_what_counts_as_a_column(log: JobLog) -> None:
    by_path = {"type": "fulltext", "columns": ["name:$.title"]}
    assert api.register_job("shop.items", "titles", by_path, log=log) is True
    with pytest.raises(UsageError, match=r"^columns: .*nope"):
        api.register_job("shop.items", "odd", {**by_path, "columns": ["nope:$.title"]}, log=log)

"""Tests of the schema: made at first use, versioned, and honest about what it can't read."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from iscp_dagster.errors import LogSchemaTooNew
from iscp_dagster.joblog import JobLog
from iscp_dagster.joblog.rows import UnreadableRow
from iscp_dagster.joblog.schema import SCHEMA_VERSION
from iscp_dagster.rules.model import TS, Job, JobState
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.settings import Settings
from iscp_dagster_tests.joblog.crew import Crew
from iscp_dagster_tests.joblog.databases import NOW, TABLE, add_job, add_table, dump, execute


def test_the_schema_comes_with_the_first_use(log_url: str) -> None:
    with JobLog(log_url) as log:
        assert list(log.jobs.list()) == []
    found = dump(log_url)
    assert {"mo_iscp_log", "mo_iscp_iterations", "iscp_tables", "iscp_schema"} <= found.keys()
    assert found["iscp_schema"] == [("version",), (SCHEMA_VERSION,)]


def test_a_log_is_still_there_when_it_is_opened_again(log: JobLog, log_url: str) -> None:
    key = add_job(log, "copy")
    with JobLog(log_url) as again:
        assert again.jobs.get(key) == log.jobs.get(key)


def test_eight_processes_may_make_the_schema_at_once(
    fresh_log: Callable[[], AbstractContextManager[str]], crew: Crew
) -> None:
    for _ in range(10):
        with fresh_log() as url:
            added = crew.all("add_same_table", url=url)
            assert sorted(added) == [False] * 7 + [True]
            found = dump(url)
            assert found["iscp_schema"] == [("version",), (SCHEMA_VERSION,)]
            assert [row[0] for row in found["iscp_counters"]] == ["name", "change", "job"]
            assert len(found["iscp_tables"]) == 2


def test_a_newer_schema_is_refused_and_nothing_is_touched(log_url: str) -> None:
    with JobLog(log_url) as log:
        add_table(log)
        add_job(log, "copy")
    execute(log_url, "update iscp_schema set version = :v", v=SCHEMA_VERSION + 1)
    execute(log_url, "create table of_the_future (x integer)")
    execute(log_url, "alter table mo_iscp_log add column mood varchar(10)")
    before = dump(log_url)

    with JobLog(log_url) as log:
        for use in (
            lambda: log.jobs.list(),
            lambda: log.jobs.changes(0),
            lambda: log.jobs.register(TABLE.job("other"), JobSpec(type="mirror"), NOW),
            lambda: log.jobs.unregister(TABLE.job("copy"), NOW),
            lambda: log.tables.list(),
            lambda: log.iterations.open(),
            lambda: log.iterations.heartbeat(1, NOW),
        ):
            with pytest.raises(LogSchemaTooNew, match=f"version {SCHEMA_VERSION + 1}.*upgrade"):
                use()
    assert dump(log_url) == before


def test_a_reader_of_a_log_that_is_there_waits_for_no_writer(log: JobLog, log_url: str) -> None:
    key = add_job(log, "copy")
    with log._database.write(), JobLog(log_url) as reader:
        assert [job.key for job in reader.jobs.list()] == [key]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("job_spec", json.dumps({"type": "mirror", "retention": "7d"}), "job_spec.retention"),
        ("job_spec", json.dumps({"type": "mirror", "priority": "urgent"}), "job_spec.priority"),
        ("job_spec", "{", "job_spec"),
        ("job_state", "hibernating", "hibernating"),
        ("stage", "orbit", "orbit"),
        ("watermark", "v2:17", "v2:17"),
        ("job_status", "[]", ""),
        ("job_status", '{"to_ts": 7}', ""),
        ("job_status", '{"end_at": "noon"}', "noon"),
    ],
)
def test_a_row_that_this_version_can_not_read_is_reported_and_the_others_go_on(
    log: JobLog, log_url: str, column: str, value: str, reason: str
) -> None:
    good, odd = add_job(log, "good"), add_job(log, "odd")
    execute(log_url, f"update mo_iscp_log set {column} = :v where job_name = 'odd'", v=value)  # noqa: S608

    listed = {row.key: row for row in log.jobs.list()}
    assert isinstance(listed[good], Job)
    unreadable = listed[odd]
    assert isinstance(unreadable, UnreadableRow)
    assert reason in unreadable.reason
    assert "\n" not in unreadable.reason

    changes = log.jobs.changes(0)
    assert [job.key for job in changes.jobs] == [good]
    assert changes.unreadable == (unreadable,)
    assert changes.change_seq == unreadable.change_seq

    with pytest.raises(LogSchemaTooNew, match="sys/shop/orders/odd"):
        log.jobs.get(odd)
    with pytest.raises(LogSchemaTooNew):
        log.jobs.update_spec(odd, {"priority": 1})
    log.jobs.update_spec(good, {"priority": 1})


def test_a_row_that_can_not_be_read_is_alive_and_can_be_dropped(log: JobLog, log_url: str) -> None:
    key = add_job(log, "odd")
    execute(log_url, "update mo_iscp_log set job_state = 'hibernating'")
    assert log.jobs.register(key, JobSpec(type="mirror"), NOW) is False
    assert log.jobs.unregister(key, NOW) is True
    assert log.jobs.register(key, JobSpec(type="mirror"), NOW) is True


def test_a_run_ends_in_order_when_a_newer_version_altered_its_job(
    log: JobLog, log_url: str
) -> None:
    key = add_job(log, "copy")
    running = log.jobs.compare_and_set(log.jobs.get(key), state=JobState.RUNNING)
    newer = json.dumps({"type": "mirror", "retention": "7d"})
    execute(log_url, "update mo_iscp_log set job_spec = :v", v=newer)
    ended = log.jobs.compare_and_set(running, state=JobState.COMPLETED, watermark=TS(4, NOW))
    assert (ended.watermark, ended.spec) == (TS(4), running.spec)


def test_the_embedded_log_lives_in_the_home_and_is_a_write_ahead_log(tmp_path: Path) -> None:
    settings = Settings.from_env({"ISCP_HOME": str(tmp_path / "deep" / "home")})
    with JobLog.open(settings) as log:
        add_table(log)
        engine = create_engine(f"sqlite:///{tmp_path / 'deep' / 'home' / 'iscp.db'}")
        with engine.connect() as connection:
            assert connection.scalar(text("pragma journal_mode")) == "wal"
        engine.dispose()

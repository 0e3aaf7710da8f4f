"""Tests of a database that is away, busy or no database at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from iscp_dagster.errors import LogUnavailable, UsageError
from iscp_dagster.joblog import JobLog, database
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster_tests.joblog.databases import NOW, TABLE, add_job, add_table, plain_engine

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://app:s3cret@{NOBODY}/iscp",
        f"postgresql+psycopg2://app:s3cret@{NOBODY}/iscp",
        f"postgresql://{NOBODY}/iscp?user=app&password=s3cret",
        f"postgresql://app:s3cret@{NOBODY}/iscp?no_such_option=1",
    ],
)
def test_a_server_that_is_away_is_told_in_one_line_without_the_password(url: str) -> None:
    pytest.importorskip("psycopg2")
    with JobLog(url) as log:
        for use in (lambda: log.jobs.list(), lambda: log.jobs.unregister(TABLE.job("x"), NOW)):
            with pytest.raises(LogUnavailable) as caught:
                use()
            message = str(caught.value)
            assert NOBODY in message
            assert "ISCP_LOG_URL" in message
            assert "\n" not in message
            error: BaseException | None = caught.value
            while error is not None:
                assert "s3cret" not in str(error)
                error = error.__cause__
            assert not caught.value.permanent


@pytest.mark.parametrize(
    "url",
    [
        "s3cret",
        "postgresql://app:s3cret@host:port/iscp",
        "postgresql+nosuchdriver://app:s3cret@host/iscp",
        "mysql://app:s3cret@host/iscp",
        "",
    ],
)
def test_what_is_no_url_of_a_log_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(UsageError, match="ISCP_LOG_URL") as caught:
        JobLog(url)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_home_that_can_not_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LogUnavailable, match=r"file.*ISCP_HOME") as caught:
        JobLog(f"sqlite:///{tmp_path / 'file' / 'iscp.db'}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_database_is_told_in_one_line_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "iscp.db"
    path.write_text("dear diary, " * 1000)
    with JobLog(f"sqlite:///{path}") as log, pytest.raises(LogUnavailable, match="not a database"):
        log.jobs.list()
    assert path.read_text() == "dear diary, " * 1000


def test_a_folder_in_place_of_the_database_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "iscp.db").mkdir()
    with (
        JobLog(f"sqlite:///{tmp_path / 'iscp.db'}") as log,
        pytest.raises(LogUnavailable, match="unable to open"),
    ):
        log.jobs.list()


def test_writers_queue_up_and_one_that_waits_too_long_says_so(
    log: JobLog, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = add_job(log, "copy")
    monkeypatch.setattr(database, "_BUSY_TIMEOUT_MS", 100)
    with JobLog(log_url) as other:
        with log._database.write():
            with pytest.raises(LogUnavailable, match="lock"):
                other.jobs.pause(key, NOW)
            with pytest.raises(LogUnavailable, match="lock"):
                other.jobs.register(TABLE.job("second"), JobSpec(type="mirror"), NOW)
            assert [job.key for job in other.jobs.list()] == [key]
        assert other.jobs.pause(key, NOW) is True


def test_a_write_that_fails_half_way_leaves_nothing_behind(log: JobLog) -> None:
    key = add_job(log, "copy")
    before = log.jobs.get(key)
    with pytest.raises(TypeError, match="colour"):
        log.jobs.compare_and_set_many([(before, {"attempt": 9}), (before, {"colour": "red"})])
    assert log.jobs.get(key) == before
    assert log.jobs.pause(key, NOW) is True


@pytest.mark.postgres
def test_a_server_that_came_back_is_used_again(postgres_url: str) -> None:
    with JobLog(postgres_url) as log:
        add_table(log)
        name = make_url(postgres_url).query["application_name"]
        administrator = plain_engine(postgres_url.partition("?")[0])
        with administrator.connect() as connection:
            ended = connection.scalars(
                text(
                    "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
                    "where application_name = :name"
                ),
                {"name": name},
            ).all()
        administrator.dispose()
        assert ended == [True]
        assert [table.key for table in log.tables.list()] == [TABLE]


@pytest.mark.postgres
def test_a_stricter_default_of_the_server_does_not_fail_writers_that_wait(
    postgres_url: str,
) -> None:
    url = make_url(postgres_url)
    options = f"{url.query['options']} -cdefault_transaction_isolation=serializable"
    strict = url.update_query_dict({"options": options}).render_as_string(hide_password=False)
    with JobLog(strict) as log:
        for transaction in (log._database.read, log._database.touch):
            with transaction() as connection:
                level = connection.scalar(text("show transaction_isolation"))
                assert level == "read committed"

"""Tests of the settings: defaults, what is read, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from iscp_dagster.errors import UsageError
from iscp_dagster.settings import Settings

GIVEN = {
    "ISCP_HOME": "/var/lib/iscp",
    "ISCP_LOG_URL": "postgresql://app@db/iscp",
    "ISCP_WAREHOUSE": "s3://lake/indexes",
    "SPARK_REMOTE": "sc://cluster:15002",
    "ISCP_SPARK_PACKAGES": "io.delta:delta-spark_2.13:4.0.0",
    "ISCP_SPARK_MASTER": "local[8]",
    "ISCP_SPARK_MEMORY": "16g",
    "ISCP_SPARK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    "ISCP_RUNNER_SHARDS": "3",
    "ISCP_MAX_RUNS": "12",
    "ISCP_KEEP_WINDOWS": "50",
}
NUMBERS = ("ISCP_RUNNER_SHARDS", "ISCP_MAX_RUNS", "ISCP_KEEP_WINDOWS")


def test_everything_has_a_default_below_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_env({})
    home = tmp_path / ".iscp"
    assert settings.home == home
    assert settings.log_url == f"sqlite:///{home}/iscp.db"
    assert settings.warehouse == f"{home}/warehouse"
    assert (settings.spark_remote, settings.spark_packages) == (None, None)
    assert settings == Settings(home, settings.log_url, settings.warehouse)


def test_the_log_and_the_warehouse_follow_the_home(tmp_path: Path) -> None:
    settings = Settings.from_env({"ISCP_HOME": str(tmp_path)})
    assert settings.log_url == f"sqlite:///{tmp_path}/iscp.db"
    assert settings.warehouse == f"{tmp_path}/warehouse"


def test_a_home_is_absolute_so_that_it_stays_put_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.from_env({"ISCP_HOME": "here/and/there"}).home == tmp_path / "here/and/there"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings.from_env({"ISCP_HOME": "~/iscp"}).home == tmp_path / "iscp"


def test_every_setting_is_read_from_its_variable() -> None:
    settings = Settings.from_env(GIVEN)
    assert [str(getattr(settings, field.name)) for field in fields(settings)] == [*GIVEN.values()]


def test_the_process_environment_is_what_counts_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in GIVEN.items():
        monkeypatch.setenv(name, value)
    assert Settings.from_env() == Settings.from_env(GIVEN)


@pytest.mark.parametrize("name", GIVEN)
def test_a_variable_that_is_set_to_nothing_is_not_set(name: str) -> None:
    without = {key: value for key, value in GIVEN.items() if key != name}
    assert Settings.from_env({**without, name: ""}) == Settings.from_env(without)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", " 3", "٣", "²"])
def test_what_is_no_whole_number_above_zero_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        Settings.from_env({**GIVEN, name: value})
    assert repr(value) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_warehouse_has_no_slash_at_its_end() -> None:
    assert Settings.from_env({"ISCP_WAREHOUSE": "s3://lake/indexes/"}).warehouse == (
        "s3://lake/indexes"
    )


def test_settings_are_fixed_once_read() -> None:
    settings = Settings.from_env(GIVEN)
    with pytest.raises(AttributeError):
        settings.max_runs = 5  # pyright: ignore[reportAttributeAccessIssue]

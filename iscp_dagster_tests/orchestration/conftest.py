"""Homes, logs and tables for tests of what Dagster sees and of the runner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance

from iscp_dagster.joblog import JobLog
from iscp_dagster.settings import Settings
from iscp_dagster_tests.conftest import settings_in
from iscp_dagster_tests.orchestration.house import House
from iscp_dagster_tests.shop import Shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A home without a log yet, named by the environment."""
    for name in ("ISCP_LOG_URL", "ISCP_WAREHOUSE", "ISCP_RUNNER_SHARDS", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    shop = Shop(tmp_path)
    monkeypatch.setenv("ISCP_HOME", str(shop.home))
    return shop


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of this test's own, which this process runs with."""
    for name in ("ISCP_LOG_URL", "ISCP_WAREHOUSE", "SPARK_REMOTE", "ISCP_FAULT", "ISCP_MAX_RUNS"):
        monkeypatch.delenv(name, raising=False)
    settings = settings_in(tmp_path / "home")
    monkeypatch.setenv("ISCP_HOME", str(settings.home))
    monkeypatch.setenv("ISCP_SPARK_MEMORY", "1g")
    return settings


@pytest.fixture
def house(home: Settings, tmp_path: Path) -> Iterator[House]:
    """An empty log."""
    with JobLog.open(home) as log:
        yield House(home, log, tmp_path / "tables")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    """A Dagster instance with storage on disk."""
    folder = tmp_path / "dagster"
    folder.mkdir()
    overrides = {"telemetry": {"enabled": False}}
    with DagsterInstance.local_temp(str(folder), overrides) as instance:
        yield instance

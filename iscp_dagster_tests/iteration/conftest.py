"""One home with a synced table and its indexes, for all tests of iterations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.instance import open_instance
from iscp_dagster_tests.conftest import settings_in
from iscp_dagster_tests.consumers.shop import Shop
from iscp_dagster_tests.iteration.works import PLUG_INS, Works
from iscp_dagster_tests.orchestration.house import House

_CLEARED = ("ISCP_LOG_URL", "ISCP_WAREHOUSE", "SPARK_REMOTE", "ISCP_FAULT", "ISCP_MAX_RUNS")


@pytest.fixture(scope="session")
def _works(spark: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Works]:
    folder = tmp_path_factory.mktemp("works")
    settings = settings_in(folder / "home")
    with pytest.MonkeyPatch.context() as patch, JobLog.open(settings) as log:
        patch.setenv("DAGSTER_HOME", str(settings.home))
        patch.syspath_prepend(PLUG_INS)
        with open_instance(settings) as instance:
            house = House(settings, log, folder / "tables")
            works = Works(house, instance, Shop.create(house.path("items")))
            works.build()
            patch.undo()
            yield works


@pytest.fixture
def works(_works: Works, monkeypatch: pytest.MonkeyPatch) -> Iterator[Works]:
    """The home with all its indexes caught up; this process and its children run with it."""
    for name in _CLEARED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ISCP_HOME", str(_works.house.settings.home))
    monkeypatch.setenv("DAGSTER_HOME", str(_works.house.settings.home))
    monkeypatch.setenv("ISCP_SPARK_MEMORY", "1g")
    monkeypatch.syspath_prepend(PLUG_INS)
    _works.catch_up()
    yield _works
    _works.end_processes()

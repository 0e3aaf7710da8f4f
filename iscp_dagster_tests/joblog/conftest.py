"""Fixtures for tests of the log: each runs on SQLite and on PostgreSQL.

The PostgreSQL server is named by `ISCP_TEST_POSTGRES_URL`; every test gets a schema of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from iscp_dagster.joblog import JobLog
from iscp_dagster_tests.joblog.crew import Crew
from iscp_dagster_tests.joblog.databases import add_table, fill, fresh_postgresql, fresh_sqlite

DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
MANY_JOBS = 100_000


def fresh(database: str, folder: Path) -> AbstractContextManager[str]:
    """The URL of a fresh log on one of the databases."""
    if database == "sqlite":
        return fresh_sqlite(folder)
    server = os.environ.get("ISCP_TEST_POSTGRES_URL")
    if not server:
        pytest.skip("ISCP_TEST_POSTGRES_URL names no PostgreSQL server")
    # No test pulls the plug of the server: its commits need not wait for the disk.
    return fresh_postgresql(server, "-csynchronous_commit=off")


@pytest.fixture(params=DATABASES)
def fresh_log(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[], AbstractContextManager[str]]:
    """Makes URLs of logs that have never been used."""
    return lambda: fresh(request.param, tmp_path)


@pytest.fixture
def log_url(fresh_log: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """The URL of a log that has never been used."""
    with fresh_log() as url:
        yield url


@pytest.fixture
def postgres_url(tmp_path: Path) -> Iterator[str]:
    """The URL of a log on PostgreSQL, for what only a server does."""
    with fresh("postgresql", tmp_path) as url:
        yield url


@pytest.fixture
def log(log_url: str) -> Iterator[JobLog]:
    """A log with one table, `shop.orders`."""
    with JobLog(log_url) as log:
        add_table(log)
        yield log


@pytest.fixture(scope="module", params=DATABASES)
def shared_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a fresh log that the tests of a module share."""
    with fresh(request.param, tmp_path_factory.mktemp("log")) as url:
        yield url


@pytest.fixture(scope="module")
def full_log(shared_url: str) -> Iterator[JobLog]:
    """A log with 100,000 jobs on 10,000 tables."""
    fill(shared_url, MANY_JOBS)
    with JobLog(shared_url) as log:
        yield log


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Eight processes, up and waiting for work."""
    with Crew(size=8) as crew:
        yield crew

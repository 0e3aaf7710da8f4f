"""The log as one object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from iscp_dagster.joblog.database import Database
from iscp_dagster.joblog.iterations import Iterations
from iscp_dagster.joblog.jobs import Jobs
from iscp_dagster.joblog.tables import Tables
from iscp_dagster.settings import Settings


class JobLog:
    """The registry of tables, jobs and iterations in its database."""

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self.tables = Tables(self._database)
        self.jobs = Jobs(self._database)
        self.iterations = Iterations(self._database)

    @staticmethod
    def open(settings: Settings) -> JobLog:
        """Open the log that the settings name."""
        return JobLog(settings.log_url)

    def close(self) -> None:
        """Give back all connections."""
        self._database.close()

    def __enter__(self) -> JobLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def opened(log: JobLog | None) -> Iterator[JobLog]:
    """Lend a log that is at hand, or open the environment's for as long as it takes."""
    if log is not None:
        yield log
        return
    with JobLog.open(Settings.from_env()) as own:
        yield own

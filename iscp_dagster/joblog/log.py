"""The log as one object."""

from __future__ import annotations

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

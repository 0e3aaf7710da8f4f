"""Dagster resources: the log with its settings, and the Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import ConfigurableResource, InitResourceContext
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr

from iscp_dagster.joblog import JobLog
from iscp_dagster.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from iscp_dagster.sources.facts import TableFacts


class IscpResource(ConfigurableResource):
    """The settings of this process and the log they name."""

    _log: JobLog | None = PrivateAttr(default=None)
    _settings: Settings | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Read the settings; the log opens at first use."""
        self._settings = Settings.from_env()

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Give back the log's connections."""
        if self._log is not None:
            self._log.close()
            self._log = None

    @property
    def settings(self) -> Settings:
        """The settings of this process."""
        if self._settings is None:
            self._settings = Settings.from_env()
        return self._settings

    @property
    def log(self) -> JobLog:
        """The log."""
        if self._log is None:
            self._log = JobLog.open(self.settings)
        return self._log

    def read_facts(self, uri: str) -> TableFacts:
        """Read what a Delta table says of itself, without a JVM."""
        from iscp_dagster.sources.facts import read_facts

        return read_facts(uri)


class SparkResource(LazyPySparkResource):
    """dagster-pyspark's resource over the one place where sessions are made.

    The session starts when it is first asked for, so a run that has nothing to do starts none.
    """

    _run_id: str | None = PrivateAttr(default=None)

    def session_for(self, run_id: str) -> SparkSession:
        """Return the session of a run: over Connect one that other processes can find by it."""
        self._run_id = run_id
        return self.spark_session

    def _init_session(self) -> None:
        from iscp_dagster.spark.session import get_spark, session_id_of

        if self._spark_session is None:
            session_id = None if self._run_id is None else session_id_of(self._run_id)
            self._spark_session = get_spark(Settings.from_env(), session_id=session_id)

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """End a session over Connect; a local one serves the next run of this process."""
        from iscp_dagster.spark.sql import over_connect

        if self._spark_session is not None and over_connect(self._spark_session):
            self._spark_session.stop()
            self._spark_session = None

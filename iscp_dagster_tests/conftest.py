"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iscp_dagster.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Tests are short work: half of what a fresh JVM does is compiling. Child processes inherit it.
os.environ.setdefault("ISCP_SPARK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


def settings_in(home: Path, **variables: str) -> Settings:
    """The settings of a home, with nothing else taken from the machine's environment."""
    options = os.environ["ISCP_SPARK_JAVA_OPTIONS"]
    return Settings.from_env(
        {"ISCP_HOME": str(home), "ISCP_SPARK_JAVA_OPTIONS": options, **variables}
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings of a home of this test's own."""
    return settings_in(tmp_path / "home")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one local Spark session that all tests of this process share."""
    from iscp_dagster.spark.session import get_spark

    home = tmp_path_factory.mktemp("spark-home")
    session = get_spark(settings_in(home, ISCP_SPARK_MEMORY="2g"), "iscp-tests")
    yield session
    session.stop()

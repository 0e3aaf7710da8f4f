"""The Spark session: a local one by default, a Spark Connect server's where one is set.

A *conf* is a dict of Spark's own settings. The *session conf* is the part of it that a session may
choose for itself, and so the part that holds over Connect, too.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from iscp_dagster.errors import SparkUnavailable, UsageError
from iscp_dagster.settings import Settings
from iscp_dagster.spark.jars import delta_jars
from iscp_dagster.spark.java import find_java_home, write_shim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANSWER_SECONDS = 5.0
"""How long a Connect server may take to answer."""

# Java's default, except with one compiler alone (-XX:TieredStopAtLevel=1): then it is 48 MB, Spark
# fills them within minutes, and a task that meets their end takes the JVM with it.
_CODE_CACHE = "-XX:ReservedCodeCacheSize=240m"
_LOG4J = Path(__file__).with_name("log4j2.properties")
_starting = threading.Lock()
_SESSIONS = uuid.UUID("6ba55f2e-8f9e-4d0c-9a51-0c1a6f0f8a11")


def get_spark(
    settings: Settings, app_name: str = "iscp", *, session_id: str | None = None
) -> SparkSession:
    """Return this process's Spark session; start or join one where there is none.

    Args:
        settings: Where and how large; `spark_remote` decides between Connect and local.
        app_name: What the session is called in Spark's own listings.
        session_id: Over Connect, the UUID of the session, so that another process can find and
            interrupt it. Without it, each process gets one of its own.

    Raises:
        SparkUnavailable: The Connect server does not answer, or the JVM does not start.
        JavaNotFound: A local session needs Java 17 or 21.
        DeltaJarsMissing: A local session needs Delta's classes.
    """
    with _starting:
        if settings.spark_remote:
            return _remote(settings.spark_remote, session_conf(settings), app_name, session_id)
        with launch_environment(settings):
            return _local(spark_conf(settings), app_name)


def session_id_of(run_id: str) -> str:
    """Return the id of the Connect session that a run works in."""
    return str(uuid.uuid5(_SESSIONS, run_id))


def interrupt_session_of(settings: Settings, run_id: str) -> None:
    """Stop what a run left running on the Connect server; harmless where there is nothing.

    A local session needs none of it: its JVM ends with the process that started it.
    """
    if not settings.spark_remote:
        return
    from pyspark.errors import PySparkException

    try:
        session = get_spark(settings, session_id=session_id_of(run_id))
        session.interruptAll()
        session.stop()
    except PySparkException:
        # The session was closed in good order: nothing runs in it.
        return


def session_conf(settings: Settings) -> dict[str, str]:
    """The conf of every session, local or over Connect."""
    conf = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if not settings.spark_remote and settings.spark_master.startswith("local"):
        # Spark's 200 and Delta's 50 are meant for clusters; here they are mostly task overhead.
        partitions = str(max(4, 2 * _cores(settings.spark_master)))
        conf["spark.sql.shuffle.partitions"] = partitions
        conf["spark.databricks.delta.snapshotPartitions"] = partitions
        # Planning anew after every stage pays on clusters; here it costs a fifth of an iteration.
        conf["spark.sql.adaptive.enabled"] = "false"
    return conf


def spark_conf(settings: Settings) -> dict[str, str]:
    """The whole conf of a local session, e.g. for dagster-pyspark's resource.

    A session made from it by other means than `get_spark` has to be made inside
    `launch_environment`.
    """
    if settings.spark_remote:
        return {"spark.remote": settings.spark_remote, **session_conf(settings)}
    scratch = settings.home / "spark"
    more = settings.spark_java_options
    conf = {
        "spark.master": settings.spark_master,
        "spark.driver.memory": settings.spark_memory,
        "spark.driver.extraJavaOptions": " ".join(
            ("-XX:+UseSerialGC", _CODE_CACHE, f'"-Dlog4j2.configurationFile={_LOG4J}"', more)
        ).strip(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **session_conf(settings),
    }
    if settings.spark_master.startswith("local"):
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Spark's default of up to 64 MB for each sort and hash table of each task fills the
            # heap of a small driver once a few consumers work side by side.
            "spark.buffer.pageSize": "4m",
            # Spark's default is a folder relative to wherever the process happens to run.
            "spark.driver.defaultExtraClassPath": "",
        }
    if settings.spark_packages:
        conf["spark.jars.packages"] = settings.spark_packages
    elif not settings.spark_master.startswith("local"):
        # Executors on other machines get the jars from the driver.
        conf["spark.jars"] = ",".join(map(str, delta_jars(settings.home)))
    return conf


def launch_variables(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that a Spark JVM of ours starts with."""
    java_home = find_java_home(environ)
    variables = {
        "JAVA_HOME": str(write_shim(java_home, settings.home / "spark" / "java")),
        # Python workers otherwise run whatever python3 comes first on PATH.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if settings.spark_master.startswith("local") and not settings.spark_packages:
        # At the end of the class path: the jar also holds older copies of Spark's own libraries.
        jars = [environ.get("SPARK_DIST_CLASSPATH", ""), *map(str, delta_jars(settings.home))]
        variables["SPARK_DIST_CLASSPATH"] = os.pathsep.join(filter(None, jars))
    return variables


@contextmanager
def launch_environment(settings: Settings) -> Iterator[None]:
    """Have `launch_variables` in this process's environment while a session starts."""
    if settings.spark_remote:
        yield
        return
    variables = launch_variables(settings, os.environ)
    # The settings decide: pyspark would go to the server of this variable all the same.
    before = {name: os.environ.pop(name, None) for name in (*variables, "SPARK_REMOTE")}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def wait_until_answers(url: str, seconds: float = ANSWER_SECONDS) -> None:
    """Return once a Connect server answers.

    Raises:
        SparkUnavailable: It did not, within that time.
        UsageError: The URL is not one of a Connect server.
    """
    import grpc
    from pyspark.errors import PySparkValueError
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        channel = DefaultChannelBuilder(url).toChannel()
    except (PySparkValueError, ValueError) as error:
        raise UsageError(f"SPARK_REMOTE: {url!r} is not of the form sc://host:port") from error
    try:
        grpc.channel_ready_future(channel).result(timeout=seconds)
    except grpc.FutureTimeoutError:
        raise SparkUnavailable(
            f"the Spark Connect server {_place(url)} does not answer within {seconds:g} s",
            cure="start it, or unset SPARK_REMOTE for a local session",
        ) from None
    finally:
        channel.close()


def _local(conf: Mapping[str, str], app_name: str) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.builder.appName(app_name).config(map=dict(conf)).getOrCreate()
    except PySparkRuntimeError as error:
        raise SparkUnavailable(f"no local Spark session: {_first_line(error)}") from error


def _remote(
    url: str, conf: Mapping[str, str], app_name: str, session_id: str | None
) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    wait_until_answers(url)
    separator = ";" if "/;" in url else "/;"
    if session_id:
        url = f"{url.rstrip('/;')}{separator}session_id={session_id}"
    builder = SparkSession.builder.remote(url).appName(app_name).config(map=dict(conf))
    try:
        return builder.create() if session_id else builder.getOrCreate()
    except PySparkException as error:
        raise SparkUnavailable(f"no session on {_place(url)}: {_first_line(error)}") from error


def _cores(master: str) -> int:
    found = re.match(r"local\[(\d+|\*)", master)
    if found is None:
        return 1
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1])


def _place(url: str) -> str:
    return url.split("/;")[0]


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)

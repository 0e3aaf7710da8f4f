"""Names, errors and sessions on the way to Spark SQL.

An *identifier* or a path becomes part of a statement only through the quoting functions here. An
*own session* shares its parent's cluster, cached data and global temp views, and has confs and temp
views of its own: Delta takes a commit's transaction id from the session's conf, so two consumers
that commit side by side need one each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_OWN_CONF = {
    # `${env:…}` in an identifier or a literal is text, never a variable.
    "spark.sql.variable.substitute": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "static",
    # A sum of decimals keeps every digit, or fails; it is never rounded to make room.
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    # The changes are persisted already; a second copy would be the dearest step of a MERGE.
    "spark.databricks.delta.merge.materializeSource": "none",
}
_INHERITED = (
    "spark.sql.shuffle.partitions",
    "spark.sql.adaptive.enabled",
    "spark.databricks.delta.snapshotPartitions",
)


def quote_identifier(name: str) -> str:
    """Write a name as one identifier, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def quote_identifiers(names: Iterable[str]) -> str:
    """Write names as a list of identifiers."""
    return ", ".join(map(quote_identifier, names))


def quote_path_table(uri: str) -> str:
    """Write the Delta table at a uri the way SQL names it."""
    return f"delta.{quote_identifier(uri)}"


def quote_literal(text: str) -> str:
    """Write a text as a string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def column(name: str) -> Column:
    """Return the column of that exact name, dots and all."""
    from pyspark.sql import functions as fn

    return fn.col(quote_identifier(name))


def columns(names: Sequence[str]) -> list[Column]:
    """Return the columns of those exact names."""
    return [column(name) for name in names]


def spark_errors() -> tuple[type[Exception], ...]:
    """The exceptions a Spark call raises, locally or over Connect."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def has_condition(error: BaseException, names: Iterable[str]) -> bool:
    """Whether a Spark error is one of these error conditions, or was caused by one.

    An error that a task or a Java library raised arrives as text only.
    """
    condition = getattr(error, "getCondition", None)
    text = f"[{condition()}]{error}" if condition else str(error)
    return any(re.search(rf"\[{re.escape(name)}[\].]", text) for name in names)


def one_line(error: BaseException) -> str:
    """Say a Spark error in one line, without its stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        return lines[1].lstrip(": ")
    return lines[0] if lines else type(error).__name__


def own_session(spark: SparkSession) -> SparkSession:
    """Return a new session beside `spark`, with confs and temp views of its own."""
    session = _beside(spark)
    for name in _INHERITED:
        value = spark.conf.get(name, None)
        if value is not None:
            session.conf.set(name, value)
    for name, value in _OWN_CONF.items():
        session.conf.set(name, value)
    return session


def release_session(session: SparkSession) -> None:
    """Give an own session back: a Connect server keeps it, and what it runs, until told.

    In one process there is nothing to give back: such a session is gone with its last reference.
    """
    if over_connect(session):
        # Not `stop` or `close`: both shut down what all sessions of the process share.
        client: Any = session.client
        client.release_session()


def over_connect(spark: SparkSession) -> bool:
    """Whether a session is one of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _beside(spark: SparkSession) -> SparkSession:
    from pyspark.sql import SparkSession as AnySession

    if not over_connect(spark):
        return spark.newSession()
    # The client keeps how to reach its server to itself; only the session's id must differ.
    channel: Any = spark.client._builder
    settings = {name: value for name, value in channel._params.items() if name != "session_id"}
    suffix = "".join(f"{name}={value};" for name, value in settings.items())
    return AnySession.builder.remote(f"sc://{channel.endpoint}/;{suffix}").create()

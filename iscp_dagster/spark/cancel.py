"""Stopping Spark work from another thread.

A *tag* marks everything that a thread starts in Spark; interrupting the tag stops all of it, in
seconds, and nothing else. Both kinds of session have tags, under different names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one over Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Mark what this thread starts in Spark with `tag`."""
    if is_connect(spark):
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    context = spark.sparkContext
    context.addJobTag(tag)
    # Without it a task that waits (a lock, a slow file system) goes on until it is done waiting.
    context.setInterruptOnCancel(True)
    try:
        yield
    finally:
        context.removeJobTag(tag)


def interrupt(spark: SparkSession, tag: str) -> None:
    """Stop everything that carries `tag`; harmless when nothing does."""
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)

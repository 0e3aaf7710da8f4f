"""Stopping Spark work from another thread.

A *tag* marks everything that a thread starts in Spark; interrupting the tag stops all of it, in
seconds, and nothing else. Both kinds of session have tags, under different names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iscp_dagster.spark.sql import over_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Mark what this thread starts in Spark with `tag`."""
    if over_connect(spark):
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
    if over_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)

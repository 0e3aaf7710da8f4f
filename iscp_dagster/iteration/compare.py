"""Comparing an index with a build from scratch at its own watermark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iscp_dagster.consumers.base import Comparison, IndexPlace
from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.rules.model import TS, Job, Table, Window
from iscp_dagster.sources.changes import retrieve
from iscp_dagster.sources.facts import read_facts
from iscp_dagster.stores.paths import index_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compare_index(job: Job, table: Table, warehouse: str, spark: SparkSession) -> Comparison | None:
    """Compare one job's index; None when it has none yet, or its kind can't be compared.

    Raises:
        WindowUnavailable: The table can't be read at the index's watermark any more.
    """
    uri = index_uri(warehouse, job.key, job.live_job_id)
    consumer = get_consumer_class(job.spec.type)(IndexPlace(job.key, job.live_job_id, uri), spark)
    watermark = consumer.watermark()
    if watermark.is_zero:
        return None
    try:
        consumer.prepare(job.spec, table, read_facts(table.uri))
        window = Window(TS.zero(), watermark)
        with retrieve(spark, table, window, consumer.columns, snapshot=True) as changes:
            return consumer.compare(changes)
    finally:
        consumer.close()

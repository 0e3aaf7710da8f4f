"""The windows of a table as dynamic partitions, and forgetting old ones."""

from __future__ import annotations

from collections import defaultdict

from dagster import DagsterInstance

from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.names import partitions_name
from iscp_dagster.orchestration.runs import flights
from iscp_dagster.rules.model import Job, TableKey
from iscp_dagster.rules.retention import prunable_windows


def prune_windows(log: JobLog, instance: DagsterInstance, keep: int) -> int:
    """Delete the windows that no job can still need, beyond the newest `keep` of each table."""
    lowest: dict[TableKey, int] = {}
    for job in log.jobs.list():
        # Nobody knows what a row that can't be read still needs.
        stands_at = job.watermark.version if isinstance(job, Job) else -1
        table = job.key.table_key
        lowest[table] = min(lowest.get(table, stands_at), stands_at)
    flying: defaultdict[TableKey, set[str]] = defaultdict(set)
    for flight in flights(instance):
        flying[flight.in_flight.table].add(flight.in_flight.window.partition_key)
    deleted = 0
    for table in log.tables.list():
        name = partitions_name(table.key)
        for key in prunable_windows(
            instance.get_dynamic_partitions(name),
            lowest=lowest.get(table.key, -1),
            in_flight=flying[table.key],
            keep=keep,
        ):
            instance.delete_dynamic_partition(name, key)
            deleted += 1
    return deleted

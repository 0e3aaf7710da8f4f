"""The windows of a table as dynamic partitions, and forgetting old ones."""

from __future__ import annotations

from collections import defaultdict

from click import ClickException
from dagster import DagsterInstance, DynamicPartitionsDefinition

from iscp_dagster.errors import UsageError
from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.names import partitions_name
from iscp_dagster.orchestration.runs import flights
from iscp_dagster.rules.model import Job, TableKey, Window
from iscp_dagster.rules.retention import prunable_windows


class Windows(DynamicPartitionsDefinition):
    """The windows of a table: those that the runner planned, and any that is asked for by hand.

    Dagster would refuse a window that nobody planned, without saying what would do. The run itself
    knows better: it takes what goes on where the indexes stand, and says in one line what is wrong
    with anything else.
    """

    @staticmethod
    def of(table: TableKey) -> Windows:
        """The windows of one table."""
        return Windows(name=partitions_name(table))

    def validate_partition_key(self, partition_key: str, context: object) -> None:
        """Let every window through to the run.

        Raises:
            ClickException: The key is no window. Dagster's CLI prints click's errors in one line,
                all others with their stack.
        """
        try:
            Window.parse(partition_key)
        except UsageError as error:
            raise ClickException(str(error)) from None


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

"""What the log holds, as Dagster definitions."""

from __future__ import annotations

from collections import defaultdict

from dagster import Definitions, in_process_executor

from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.assets import index_assets, table_asset
from iscp_dagster.orchestration.checks import check_schedules, index_checks
from iscp_dagster.orchestration.jobs import housekeeping
from iscp_dagster.orchestration.outcome_sensors import outcome_sensors
from iscp_dagster.orchestration.resources import IscpResource, SparkResource
from iscp_dagster.orchestration.runner_sensor import runner_sensors
from iscp_dagster.rules.model import Job
from iscp_dagster.settings import Settings


def build_definitions(settings: Settings, *, checks: bool = True) -> Definitions:
    """Build the definitions from what the log holds now; an empty log gives none, and loads.

    Args:
        settings: Where the log and the indexes are.
        checks: With the indexes' checks, which are part of a plain selection of their assets.
    """
    with JobLog.open(settings) as log:
        tables = log.tables.list()
        jobs: dict[int, list[Job]] = defaultdict(list)
        for job in log.jobs.list():
            # A row from a newer version is left out here and reported by the runner's tick.
            if isinstance(job, Job) and job.job_id == job.live_job_id:
                jobs[job.table_id].append(job)
    assets = [table_asset(table, jobs[table.table_id]) for table in tables]
    indexed = [table for table in tables if jobs[table.table_id]]
    assets += [index_assets(table, jobs[table.table_id], settings.warehouse) for table in indexed]
    checked = [(job, table) for table in indexed for job in jobs[table.table_id] if checks]
    jobs_of_house, schedules = housekeeping()
    return Definitions(
        assets=assets,
        asset_checks=[index_checks(job, table) for job, table in checked],
        resources={"iscp": IscpResource(), "spark": SparkResource(spark_config={})},
        sensors=[*runner_sensors(settings.runner_shards), *outcome_sensors()],
        jobs=jobs_of_house,
        schedules=[*schedules, *check_schedules([job for job, _ in checked])],
        executor=in_process_executor,
    )

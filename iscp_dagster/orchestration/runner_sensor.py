"""The sensor that decides which iterations start.

Each tick: what changed in the log -> what is in flight -> which tables changed -> plan -> ask for
runs. Evaluated from the UI's test button it leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache

from dagster import (
    AddDynamicPartitionsRequest,
    AssetKey,
    AssetObservation,
    AssetSelection,
    DefaultSensorStatus,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG

from iscp_dagster.errors import IscpError
from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.names import partitions_name
from iscp_dagster.orchestration.runner import Runner, Tick
from iscp_dagster.orchestration.runs import Flight, asset_keys, flights, request_of, windows_of
from iscp_dagster.orchestration.settle import (
    LostRuns,
    mirror_queued,
    settle_orphans,
    stop_failed,
)
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import Job
from iscp_dagster.settings import Settings

# The daemon looks every 5 s: 9 makes an even 10 s cadence.
_INTERVAL_SECONDS = 9
# A tick's log is for reading.
_MOST_LINES = 100


def runner_sensors(shards: int) -> list[SensorDefinition]:
    """Build the runner's sensors, one per shard of the tables."""
    return [_runner_sensor(shard, shards) for shard in range(shards)]


def _runner_sensor(shard: int, shards: int) -> SensorDefinition:
    @sensor(
        name="iscp_runner" if shards == 1 else f"iscp_runner_{shard}",
        description="Starts iterations for the jobs that are due, and explains each tick.",
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        asset_selection=AssetSelection.all(),
    )
    def iscp_runner(context: SensorEvaluationContext) -> SensorResult:
        try:
            return _tick(context, _state(shard, shards))
        except IscpError as error:
            # The log may be away for a minute: say so, start nothing, lose nothing.
            context.log.error(str(error))
            return SensorResult(skip_reason=str(error))

    return iscp_runner


def _tick(context: SensorEvaluationContext, state: _State) -> SensorResult:
    now = datetime.now(UTC)
    flying = flights(context.instance)
    slots = max(0, state.settings.max_runs - len(flying))
    tick = state.runner.tick([flight.in_flight for flight in flying], now, free_slots=slots)
    if _is_real(context):
        _settle(context, state, tick, flying, now)
    _tell(context, tick, state.runner.jobs)
    ready = _known_to_dagster(context, tick.plan.iterations)
    return SensorResult(
        run_requests=[request_of(iteration, state.runner.jobs) for iteration in ready],
        dynamic_partitions_requests=[
            AddDynamicPartitionsRequest(partitions_name(table), keys)
            for table, keys in windows_of(ready).items()
        ],
        asset_events=_observations(tick),
        skip_reason=None if ready else tick.plan.summary(),
    )


class _State:
    """What the sensor keeps in its process from tick to tick."""

    def __init__(self, shard: int, shards: int) -> None:
        self.settings = Settings.from_env()
        self.log = JobLog.open(self.settings)
        self.runner = Runner(self.log, shard=shard, shards=shards)
        self.lost_runs = LostRuns()


@cache
def _state(shard: int, shards: int) -> _State:
    return _State(shard, shards)


def _settle(
    context: SensorEvaluationContext,
    state: _State,
    tick: Tick,
    flying: Sequence[Flight],
    now: datetime,
) -> None:
    """Write to the log what Dagster and the plan know better."""
    jobs = state.runner.logged
    for run_id in state.lost_runs.report(state.log, context.instance, flying, now):
        context.log.warning(f"run {run_id} stopped beating: reported as failed")
    orphans = [jobs[job_id] for job_id in tick.plan.orphans if job_id in jobs]
    for told in settle_orphans(state.log, context.instance, orphans, now):
        context.log.warning(told)
    stop_failed(state.log, jobs, tick.plan.failures, now)
    mirror_queued(state.log, jobs.values(), flying)


def _is_real(context: SensorEvaluationContext) -> bool:
    """Whether the daemon asks: its log key ends in a tick's number, the test button's does not."""
    key = context.log_key
    return key is not None and key[-1].isdigit()


def _tell(context: SensorEvaluationContext, tick: Tick, jobs: Mapping[int, Job]) -> None:
    context.log.info(tick.plan.summary())
    for row in tick.unreadable:
        context.log.warning(f"{row.key}: {row.reason}")
    told = tick.plan.notable
    for job_id in sorted(told, key=lambda job_id: jobs[job_id].key)[:_MOST_LINES]:
        context.log.info(f"{jobs[job_id].key}: {told[job_id]}")
    if len(told) > _MOST_LINES:
        context.log.info(f"and {len(told) - _MOST_LINES} more jobs")


def _known_to_dagster(
    context: SensorEvaluationContext, iterations: Sequence[Iteration]
) -> list[Iteration]:
    """Keep the iterations whose assets this code location has loaded."""
    repository = context.repository_def
    if repository is None:
        return list(iterations)
    known = repository.asset_graph.get_all_asset_keys()
    ready = []
    for iteration in iterations:
        if all(key in known for key in asset_keys(iteration)):
            ready.append(iteration)
        else:
            context.log.warning(
                f"{iteration.table} {', '.join(iteration.job_names)}: registered after this code "
                "location was loaded; reload it in the UI"
            )
    return ready


def _observations(tick: Tick) -> list[AssetObservation]:
    """Tell Dagster the newest version of the tables that changed, so that lineage shows it."""
    return [
        AssetObservation(
            asset_key=AssetKey(key.asset_path),
            tags={DATA_VERSION_TAG: str(head.version)},
            metadata={"iscp/version": head.version, "iscp/head": str(head)},
        )
        for key, head in tick.changed.items()
    ]

"""The sensor that decides which iterations start.

Each tick: what changed in the log -> what is in flight -> which tables changed -> plan -> ask for
runs. Evaluated from the UI's test button it leaves nothing behind.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

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
from iscp_dagster.orchestration.runs import Flight, flights, request_of, windows_of
from iscp_dagster.orchestration.settle import (
    LostRuns,
    mirror_queued,
    settle_orphans,
    settle_spent,
    stop_failed,
)
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import Job, JobState
from iscp_dagster.settings import Settings

# The daemon looks every 5 s: 9 makes an even 10 s cadence.
_INTERVAL_SECONDS = 9
# A tick's log is for reading.
_MOST_LINES = 100


def runner_sensors(shards: int) -> list[SensorDefinition]:
    """Build the runner's sensors, one per shard of the tables."""
    return [_runner_sensor(shard, shards) for shard in range(shards)]


def _runner_sensor(shard: int, shards: int) -> SensorDefinition:
    memory = _Memory(shard, shards)

    @sensor(
        name="iscp_runner" if shards == 1 else f"iscp_runner_{shard}",
        description="Starts iterations for the jobs that are due, and explains each tick.",
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        asset_selection=AssetSelection.all(),
    )
    def iscp_runner(context: SensorEvaluationContext) -> SensorResult:
        try:
            with memory.state(context) as state:
                return _tick(context, state)
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
    _tell(context, tick, state.runner.jobs)
    ready: Sequence[Iteration] = tick.plan.iterations
    if _is_real(context):
        ready = _settle(context, state, tick, flying, now)
        state.runner.told(tick)
    return SensorResult(
        run_requests=[request_of(iteration, state.runner.jobs) for iteration in ready],
        dynamic_partitions_requests=[
            AddDynamicPartitionsRequest(partitions_name(table), keys)
            for table, keys in windows_of(ready).items()
        ],
        asset_events=observations(tick),
        skip_reason=None if ready else tick.plan.summary(),
    )


class _State:
    """What the sensor keeps in its process from tick to tick."""

    def __init__(self, shard: int, shards: int, known: Container[AssetKey] | None) -> None:
        self.settings = Settings.from_env()
        self.log = JobLog.open(self.settings)
        self.runner = Runner(
            self.log,
            shard=shard,
            shards=shards,
            is_loaded=None if known is None else lambda job: AssetKey(job.asset_path) in known,
        )
        self.lost_runs = LostRuns()


class _Memory:
    """Makes the state at the first tick, and lets one evaluation at a time use it."""

    def __init__(self, shard: int, shards: int) -> None:
        self._shard, self._shards = shard, shards
        self._lock = threading.Lock()
        self._state: _State | None = None

    @contextmanager
    def state(self, context: SensorEvaluationContext) -> Iterator[_State]:
        # The UI's test button, or a tick that Dagster gave up waiting for, may be under way.
        with self._lock:
            if self._state is None:
                # What is loaded stays the same for the life of a code location's process.
                repository = context.repository_def
                known = None if repository is None else repository.asset_graph.get_all_asset_keys()
                self._state = _State(self._shard, self._shards, known)
            yield self._state


def _settle(
    context: SensorEvaluationContext,
    state: _State,
    tick: Tick,
    flying: Sequence[Flight],
    now: datetime,
) -> list[Iteration]:
    """Write to the log what Dagster and the plan know better; returns what can have a run."""
    jobs = state.runner.logged
    lost = state.lost_runs.report(state.log, context.instance, flying, now)
    for run_id in lost:
        context.log.warning(f"run {run_id} stopped beating: reported as failed")
    orphans = [jobs[job_id] for job_id in tick.plan.orphans]
    orphans += [job for job in jobs.values() if lost and _is_held_by(job, lost)]
    told = settle_orphans(state.log, context.instance, orphans, now)
    stop_failed(state.log, jobs, tick.plan.failures, now)
    mirror_queued(state.log, jobs.values(), flying)
    ready, spent = settle_spent(state.log, context.instance, tick.plan.iterations, jobs, now)
    for line in (*told, *spent):
        context.log.warning(line)
    return ready


def _is_held_by(job: Job, runs: Sequence[str]) -> bool:
    return job.state in (JobState.PENDING, JobState.RUNNING) and job.status.run_id in runs


def _is_real(context: SensorEvaluationContext) -> bool:
    """Whether the daemon asks: its log key ends in a tick's number, the test button's does not."""
    key = context.log_key
    return key is not None and key[-1].isdigit()


def _tell(context: SensorEvaluationContext, tick: Tick, jobs: Mapping[int, Job]) -> None:
    context.log.info(tick.plan.summary())
    for row in tick.unreadable:
        context.log.warning(f"{row.key}: {row.reason}")
    for job in tick.not_loaded[:_MOST_LINES]:
        context.log.warning(
            f"{job.key}: registered after this code location was loaded; reload it in the UI"
        )
    told = tick.plan.notable
    for job_id in sorted(told, key=lambda job_id: jobs[job_id].key)[:_MOST_LINES]:
        context.log.info(f"{jobs[job_id].key}: {told[job_id]}")
    if len(told) > _MOST_LINES:
        context.log.info(f"and {len(told) - _MOST_LINES} more jobs")


def observations(tick: Tick) -> list[AssetObservation]:
    """Tell Dagster the newest version of the tables that changed, so that lineage shows it."""
    return [
        AssetObservation(
            asset_key=AssetKey(key.asset_path),
            tags={DATA_VERSION_TAG: str(head.version)},
            metadata={"iscp/version": head.version, "iscp/head": str(head)},
        )
        for key, head in tick.changed.items()
    ]

"""The same plan, executed in this process: for cron, CI, and machines without a daemon.

Each iteration is a Dagster run like any other, with the same tags, partitions and events; only who
starts it differs. Several processes may sync at once, beside a daemon too: the log's claims keep
them apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dagster import DagsterInstance, Definitions

from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.build import build_definitions
from iscp_dagster.orchestration.names import partitions_name
from iscp_dagster.orchestration.runner import Runner, Tick
from iscp_dagster.orchestration.runs import asset_keys, flights, tags_of, windows_of
from iscp_dagster.orchestration.settle import settle_orphans, stop_failed
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import Job, JobState, TableKey
from iscp_dagster.settings import Settings

_POLL_SECONDS = 0.5
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a sync did, and which jobs it could not bring up to date."""

    iterations: int
    behind: tuple[tuple[Job, str], ...]
    """Jobs that are not caught up, each with the reason."""
    summary: str


def sync(
    settings: Settings,
    instance: DagsterInstance,
    *,
    tables: Sequence[TableKey] = (),
    attempts: int = 3,
    on_iteration: Callable[[Iteration, bool], None] | None = None,
) -> SyncReport:
    """Run ticks and iterations until everything is caught up or can't be.

    Args:
        settings: What to run with.
        instance: Where runs and events are recorded.
        tables: Only these; all by default.
        attempts: How often a failing job is tried, with its usual waits in between.
        on_iteration: Called after each iteration with whether all its indexes advanced.
    """
    with JobLog.open(settings) as log:
        runner = Runner(log, only=frozenset(tables) or None)
        executor = _Executor(settings, instance)
        done = 0
        while True:
            tick = _tick(log, runner, instance)
            if tick.plan.iterations:
                iteration = tick.plan.iterations[0]
                succeeded = executor.execute(iteration, runner.jobs)
                done += 1
                if on_iteration is not None:
                    on_iteration(iteration, succeeded)
                continue
            waiting = _worth_waiting(runner, tick, attempts, datetime.now(UTC))
            if waiting is None:
                return SyncReport(done, tuple(_behind(tick)), tick.plan.summary())
            time.sleep(waiting)


def _tick(log: JobLog, runner: Runner, instance: DagsterInstance) -> Tick:
    now = datetime.now(UTC)
    tick = runner.tick([flight.in_flight for flight in flights(instance)], now)
    orphans = [runner.logged[job_id] for job_id in tick.plan.orphans]
    settle_orphans(log, instance, orphans, now)
    stop_failed(log, runner.logged, tick.plan.failures, now)
    return tick


def _worth_waiting(runner: Runner, tick: Tick, attempts: int, now: datetime) -> float | None:
    """Return how long to wait for what may still move by itself; None when nothing will."""
    if tick.plan.orphans or tick.plan.failures:
        return 0.0
    retries = [
        job.next_attempt_at
        for job in runner.jobs.values()
        if job.next_attempt_at is not None
        and job.paused_at is None
        and job.state is not JobState.ERROR
        and job.attempt < attempts
    ]
    in_flight = any(
        job.state in (JobState.PENDING, JobState.RUNNING) for job in runner.jobs.values()
    )
    if in_flight:
        return _POLL_SECONDS
    if retries:
        return max(0.0, (min(retries) - now).total_seconds()) + 0.01
    return None


def _behind(tick: Tick) -> list[tuple[Job, str]]:
    return [
        (job, reason)
        for job, reason in tick.plan.reasons()
        if job.state is JobState.ERROR or job.attempt > 0 or job.paused_at is not None
    ]


class _Executor:
    """Executes iterations as Dagster runs in this process."""

    def __init__(self, settings: Settings, instance: DagsterInstance) -> None:
        self._settings = settings
        self._instance = instance
        self._definitions: Definitions | None = None
        self._known: frozenset[object] = frozenset()

    def execute(self, iteration: Iteration, jobs: dict[int, Job]) -> bool:
        """Run one iteration; False when one of its indexes did not advance."""
        keys = asset_keys(iteration)
        if self._definitions is None or not self._known.issuperset(keys):
            self._definitions = build_definitions(self._settings)
            graph = self._definitions.resolve_asset_graph()
            self._known = frozenset(graph.get_all_asset_keys())
        for table, windows in windows_of([iteration]).items():
            self._instance.add_dynamic_partitions(partitions_name(table), windows)
        job = self._definitions.resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(
            instance=self._instance,
            asset_selection=keys,
            partition_key=iteration.window.partition_key,
            tags=tags_of(iteration, jobs),
            run_config=_QUIET,
            raise_on_error=False,
        )
        return result.success

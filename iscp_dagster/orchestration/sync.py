"""The same plan, executed in this process: for cron, CI, and machines without a daemon.

Each iteration is a Dagster run like any other, with the same tags, partitions and events; only who
starts it differs. Several processes may sync at once, beside a daemon too: the log's claims keep
them apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, Definitions

from iscp_dagster.joblog import JobLog
from iscp_dagster.joblog.rows import UnreadableRow
from iscp_dagster.orchestration.build import build_definitions
from iscp_dagster.orchestration.names import TAG_STARTED_BY, partitions_name
from iscp_dagster.orchestration.runner import Runner, Tick
from iscp_dagster.orchestration.runner_sensor import observations
from iscp_dagster.orchestration.runs import Flight, asset_keys, flights, tags_of, windows_of
from iscp_dagster.orchestration.settle import (
    LostRuns,
    settle_orphans,
    settle_unclaimed,
    stop_failed,
)
from iscp_dagster.rules.candidates import Headline
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import Job, JobState, TableKey
from iscp_dagster.settings import Settings

_POLL_SECONDS = 0.5
_DAEMON_SECONDS = 90.0
"""A daemon says every 30 s that it lives."""
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a sync did, and which jobs it could not bring up to date."""

    iterations: int
    behind: tuple[tuple[Job | UnreadableRow, str], ...]
    """Jobs that are not caught up, each with the reason."""
    summary: str


def sync(
    settings: Settings,
    instance: DagsterInstance,
    *,
    tables: Sequence[TableKey] = (),
    jobs: Sequence[str] = (),
    attempts: int = 3,
    on_iteration: Callable[[Iteration, bool], None] | None = None,
) -> SyncReport:
    """Run ticks and iterations until everything is caught up or can't be.

    Args:
        settings: What to run with.
        instance: Where runs and events are recorded.
        tables: Only these; all by default.
        jobs: Only those of these names; all by default.
        attempts: How often a failing job is tried, with its usual waits in between.
        on_iteration: Called after each iteration with whether all its indexes advanced.
    """
    with JobLog.open(settings) as log:
        runner = Runner(
            log,
            only=frozenset(tables) or None,
            is_loaded=(lambda job: job.name in jobs) if jobs else None,
        )
        executor = _Executor(settings, instance)
        lost_runs = LostRuns()
        done = 0
        while True:
            flying = _in_flight(log, instance, tables)
            tick = _tick(log, runner, instance, flying, lost_runs)
            if tick.plan.iterations:
                iteration = tick.plan.iterations[0]
                run = executor.execute(iteration, runner.jobs)
                if run.status is DagsterRunStatus.CANCELED:
                    # Dagster ended the run in good order and kept the interrupt to itself.
                    raise KeyboardInterrupt
                if not run.is_success:
                    # One that could not be claimed must not look the same to the next tick.
                    settle_unclaimed(log, iteration, runner.logged, run, datetime.now(UTC))
                done += 1
                if on_iteration is not None:
                    on_iteration(iteration, run.is_success)
                continue
            waiting = _worth_waiting(runner, tick, flying, attempts, datetime.now(UTC))
            if waiting is None:
                return SyncReport(done, tuple(_behind(tick)), tick.plan.summary())
            time.sleep(waiting)


def _in_flight(log: JobLog, instance: DagsterInstance, tables: Sequence[TableKey]) -> list[Flight]:
    """Return what is in flight on the tables; what nobody will start is taken from the queue."""
    flying = [f for f in flights(instance) if not tables or f.in_flight.table in tables]
    queued = [flight for flight in flying if flight.status is DagsterRunStatus.QUEUED]
    if queued and not _daemon_is_alive(instance):
        for flight in queued:
            _take_over(log, instance, flight)
        return [flight for flight in flying if flight not in queued]
    return flying


def _daemon_is_alive(instance: DagsterInstance) -> bool:
    beats = [beat.timestamp for beat in instance.get_daemon_heartbeats().values()]
    return time.time() - max(beats, default=0.0) < _DAEMON_SECONDS


def _take_over(log: JobLog, instance: DagsterInstance, flight: Flight) -> None:
    """End a queued run and free its jobs, so that this process can go through its window."""
    run = instance.get_run_by_id(flight.in_flight.run_id)
    if run is None or run.status is not DagsterRunStatus.QUEUED:
        return
    instance.report_run_canceled(run, "iscp: no daemon is there to start it; `iscp sync` does")
    pending = [
        job
        for job in log.jobs.list(table=flight.in_flight.table, state=JobState.PENDING)
        if isinstance(job, Job) and job.status.run_id == run.run_id
    ]
    log.jobs.compare_and_set_many([(job, {"state": JobState.COMPLETED}) for job in pending])


def _tick(
    log: JobLog,
    runner: Runner,
    instance: DagsterInstance,
    flying: Sequence[Flight],
    lost_runs: LostRuns,
) -> Tick:
    now = datetime.now(UTC)
    tick = runner.tick([flight.in_flight for flight in flying], now)
    lost_runs.report(log, instance, flying, now)
    orphans = [runner.logged[job_id] for job_id in tick.plan.orphans]
    settle_orphans(log, instance, orphans, now)
    stop_failed(log, runner.logged, tick.plan.failures, now)
    for seen in observations(tick):
        instance.report_runless_asset_event(seen)
    runner.told(tick)
    return tick


def _worth_waiting(
    runner: Runner, tick: Tick, flying: Sequence[Flight], attempts: int, now: datetime
) -> float | None:
    """Return how long to wait for what may still move by itself; None when nothing will."""
    plan = tick.plan
    if plan.counts.get(Headline.NOT_PROBED):
        return 0.0
    if flying or plan.orphans or plan.failures:
        return _POLL_SECONDS
    retries = [
        job.next_attempt_at
        for job in runner.jobs.values()
        if job.next_attempt_at is not None
        and job.paused_at is None
        and job.state is not JobState.ERROR
        and job.attempt < attempts
    ]
    if retries:
        return max(0.0, (min(retries) - now).total_seconds()) + 0.01
    return None


def _behind(tick: Tick) -> Iterator[tuple[Job | UnreadableRow, str]]:
    for job, reason in tick.plan.reasons():
        if job.paused_at is not None:
            # It stands still because somebody wants it to.
            continue
        stuck = job.state is JobState.ERROR or job.attempt > 0
        if stuck or job.key.table_key in tick.unprobed:
            yield job, reason
    for row in tick.unreadable:
        yield row, row.reason


class _Executor:
    """Executes iterations as Dagster runs in this process."""

    def __init__(self, settings: Settings, instance: DagsterInstance) -> None:
        self._settings = settings
        self._instance = instance
        self._definitions: Definitions | None = None
        self._known: frozenset[object] = frozenset()

    def execute(self, iteration: Iteration, jobs: dict[int, Job]) -> DagsterRun:
        """Run one iteration; the run fails when one of its indexes did not advance."""
        keys = asset_keys(iteration)
        if self._definitions is None or not self._known.issuperset(keys):
            # An iteration never waits for checks: they have runs of their own.
            self._definitions = build_definitions(self._settings, checks=False)
            graph = self._definitions.resolve_asset_graph()
            self._known = frozenset(graph.get_all_asset_keys())
        for table, windows in windows_of([iteration]).items():
            self._instance.add_dynamic_partitions(partitions_name(table), windows)
        everything = self._definitions.resolve_implicit_global_asset_job_def()
        result = everything.execute_in_process(
            instance=self._instance,
            asset_selection=keys,
            partition_key=iteration.window.partition_key,
            tags={**tags_of(iteration, jobs), TAG_STARTED_BY: "sync"},
            run_config=_QUIET,
            raise_on_error=False,
        )
        return result.dagster_run

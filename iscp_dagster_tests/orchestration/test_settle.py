"""What runs could not record themselves: queued, canceled, failed unclaimed, lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from iscp_dagster.errors import SourceTableMissing
from iscp_dagster.orchestration.runner import Runner
from iscp_dagster.orchestration.runs import flights
from iscp_dagster.orchestration.settle import (
    ENDING_SECONDS,
    SILENT_SECONDS,
    UNCLAIMED_SECONDS,
    LostRuns,
    mirror_queued,
    settle_orphans,
    stop_failed,
)
from iscp_dagster.rules.backoff import CANCEL_WAIT
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import IterationKind, Job, JobState
from iscp_dagster_tests.orchestration.house import House, Sensor, make_run, now, run_of

TICK = 10.0


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Watch:
    """Looks for lost runs every tick."""

    def __init__(self, house: House, instance: DagsterInstance) -> None:
        self.house, self.instance, self.clock = house, instance, Clock()
        self.lost_runs = LostRuns(self.clock)

    def look(self, after: float = TICK) -> list[str]:
        self.clock.time += after
        flying = flights(self.instance)
        return self.lost_runs.report(self.house.log, self.instance, flying, now())

    def status(self, run: DagsterRun) -> DagsterRunStatus:
        found = self.instance.get_run_by_id(run.run_id)
        assert found is not None
        return found.status


@pytest.fixture
def changed(house: House) -> House:
    """One table, changed since its job stood at its first version."""
    house.table()
    house.standing("items", "look", 0)
    house.commit()
    return house


@pytest.fixture
def watch(changed: House, instance: DagsterInstance) -> Watch:
    return Watch(changed, instance)


def plan(house: House) -> tuple[Iteration, dict[int, Job]]:
    runner = Runner(house.log)
    (iteration,) = runner.tick([], now()).plan.iterations
    return iteration, runner.jobs


def started(house: House, instance: DagsterInstance) -> tuple[DagsterRun, int]:
    """A run that has claimed its job and begun its iteration."""
    iteration, jobs = plan(house)
    run = run_of(instance, iteration, jobs, DagsterRunStatus.STARTED)
    house.set("items", "look", state=JobState.RUNNING, status=held_by(house.job(), run))
    opened = house.log.iterations.start(
        house.log.tables.list()[0],
        iteration.window,
        ["look"],
        kind=IterationKind.TAIL,
        run_id=run.run_id,
        attempt=0,
        now=now(),
    )
    return run, opened


def held_by(job: Job, run: DagsterRun):
    return replace(job.status, run_id=run.run_id, start_at=now(), end_at=None)


def settle(house: House, instance: DagsterInstance) -> list[str]:
    return settle_orphans(house.log, instance, [house.job()], now())


def test_the_jobs_of_a_queued_run_are_pending(changed: House, instance: DagsterInstance):
    iteration, jobs = plan(changed)
    run = run_of(instance, iteration, jobs)
    mirror_queued(changed.log, [changed.job()], flights(instance))
    job = changed.job()
    assert (job.state, job.status.run_id) == (JobState.PENDING, run.run_id)
    assert (job.attempt, job.watermark.version) == (0, 0)


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.ERROR])
def test_a_job_that_is_busy_or_in_error_does_not_become_pending(
    changed: House, instance: DagsterInstance, state: JobState
):
    iteration, jobs = plan(changed)
    run_of(instance, iteration, jobs)
    before = changed.set("items", "look", state=state)
    mirror_queued(changed.log, [before], flights(instance))
    assert changed.job() == before


def test_a_job_that_moved_meanwhile_does_not_become_pending(
    changed: House, instance: DagsterInstance
):
    iteration, jobs = plan(changed)
    run_of(instance, iteration, jobs)
    seen = changed.job()
    claimed = changed.set("items", "look", state=JobState.RUNNING)
    mirror_queued(changed.log, [seen], flights(instance))
    assert changed.job() == claimed


def test_a_run_canceled_while_queued_counts_no_attempt_and_waits(
    changed: House, instance: DagsterInstance
):
    iteration, jobs = plan(changed)
    run = run_of(instance, iteration, jobs)
    mirror_queued(changed.log, [changed.job()], flights(instance))
    instance.report_run_canceled(run)
    assert settle(changed, instance)
    job = changed.job()
    assert (job.state, job.attempt, job.watermark.version) == (JobState.CANCELED, 0, 0)
    assert job.status.error_code == 0
    assert job.next_attempt_at is not None
    # A minute of its own, not the backoff of a failure.
    assert timedelta(seconds=50) < job.next_attempt_at - now() <= CANCEL_WAIT
    assert not Runner(changed.log).tick([], now()).plan.iterations
    after = Runner(changed.log).tick([], job.next_attempt_at).plan.iterations
    assert [one.attempt for one in after] == [0]
    assert after[0].run_key != iteration.run_key


def test_a_failed_run_that_never_claimed_is_an_attempt_with_a_new_key(
    changed: House, instance: DagsterInstance
):
    iteration, jobs = plan(changed)
    run = run_of(instance, iteration, jobs)
    mirror_queued(changed.log, [changed.job()], flights(instance))
    instance.report_run_failed(run)
    settle(changed, instance)
    job = changed.job()
    assert (job.state, job.attempt, job.watermark.version) == (JobState.COMPLETED, 1, 0)
    assert job.status.error_code == 12
    assert job.next_attempt_at is not None
    (again,) = Runner(changed.log).tick([], job.next_attempt_at).plan.iterations
    assert again.window == iteration.window
    assert again.attempt == 1
    assert again.run_key != iteration.run_key


def test_a_pending_job_whose_run_was_forgotten_is_freed_without_an_attempt(
    changed: House, instance: DagsterInstance
):
    gone = replace(changed.job().status, run_id="no-such-run")
    changed.set("items", "look", state=JobState.PENDING, status=gone)
    settle(changed, instance)
    job = changed.job()
    assert (job.state, job.attempt, job.next_attempt_at) == (JobState.COMPLETED, 0, None)


def test_a_running_job_whose_run_failed_goes_back_with_an_attempt(
    changed: House, instance: DagsterInstance
):
    run, _ = started(changed, instance)
    instance.report_run_failed(run)
    settle(changed, instance)
    job = changed.job()
    assert (job.state, job.attempt, job.watermark.version) == (JobState.COMPLETED, 1, 0)
    assert job.status.end_at is not None


def test_a_running_job_whose_run_was_canceled_counts_no_attempt(
    changed: House, instance: DagsterInstance
):
    run, _ = started(changed, instance)
    instance.report_run_canceled(run)
    settle(changed, instance)
    assert (changed.job().state, changed.job().attempt) == (JobState.CANCELED, 0)


def test_a_job_whose_run_lives_is_left_alone(changed: House, instance: DagsterInstance):
    started(changed, instance)
    before = changed.job()
    assert settle(changed, instance) == []
    assert changed.job() == before


def test_a_run_that_speaks_up_meanwhile_wins(changed: House, instance: DagsterInstance):
    run, _ = started(changed, instance)
    seen = changed.job()
    instance.report_run_failed(run)
    done = changed.set("items", "look", state=JobState.COMPLETED, watermark=seen.watermark)
    assert settle_orphans(changed.log, instance, [seen], now()) == []
    assert changed.job() == done


def test_after_a_crash_of_everything_a_tick_frees_what_was_in_flight(
    changed: House, instance: DagsterInstance
):
    run, opened = started(changed, instance)
    instance.report_run_failed(run)
    sensor = Sensor(instance, changed.definitions())
    sensor.tick()
    assert (changed.job().state, changed.job().attempt) == (JobState.COMPLETED, 1)
    assert opened not in [record.id for record in changed.log.iterations.open()]
    changed.set("items", "look", next_attempt_at=now())
    (request,) = sensor.tick().run_requests or []
    assert request.tags["iscp/attempt"] == "1"


def test_a_permanent_failure_is_kept_in_the_log(changed: House):
    job = changed.job()
    error = SourceTableMissing("table sys/shop/items is gone: no log")
    stop_failed(changed.log, {job.job_id: job}, {job.job_id: error}, now())
    found = changed.job()
    assert found.state is JobState.ERROR
    assert found.status.error_code == error.code
    assert "is gone" in found.status.error_msg
    assert found.watermark == job.watermark
    assert changed.log.jobs.repair(found.key)
    assert changed.job().state is JobState.COMPLETED


def test_a_silent_run_is_reported_failed_and_its_iteration_closed(
    watch: Watch, changed: House, instance: DagsterInstance
):
    run, opened = started(changed, instance)
    assert watch.look() == []
    assert watch.look() == []
    assert watch.look() == [run.run_id]
    assert watch.status(run) is DagsterRunStatus.FAILURE
    (record,) = changed.log.iterations.list()
    assert (record.id, record.end_at is not None) == (opened, True)
    assert watch.look() == []


def test_a_beating_run_is_left_alone_for_ever(
    watch: Watch, changed: House, instance: DagsterInstance
):
    run, opened = started(changed, instance)
    for second in range(20):
        changed.log.iterations.heartbeat(opened, now() + timedelta(seconds=second))
        assert watch.look() == []
    assert watch.status(run) is DagsterRunStatus.STARTED


def test_a_run_that_never_claims_is_given_longer(
    watch: Watch, changed: House, instance: DagsterInstance
):
    iteration, jobs = plan(changed)
    run = run_of(instance, iteration, jobs, DagsterRunStatus.STARTED)
    looks = 0
    while not watch.look():
        looks += 1
    assert UNCLAIMED_SECONDS <= looks * TICK < UNCLAIMED_SECONDS + 2 * TICK
    assert watch.status(run) is DagsterRunStatus.FAILURE


def test_a_run_that_died_after_its_iteration_is_found_sooner(
    watch: Watch, changed: House, instance: DagsterInstance
):
    run, opened = started(changed, instance)
    changed.log.iterations.finish(opened, now=now())
    looks = 0
    while not watch.look():
        looks += 1
    assert ENDING_SECONDS <= looks * TICK < ENDING_SECONDS + 2 * TICK
    assert watch.status(run) is DagsterRunStatus.FAILURE


def test_a_queued_run_is_never_silent(watch: Watch, changed: House, instance: DagsterInstance):
    iteration, jobs = plan(changed)
    run = run_of(instance, iteration, jobs)
    assert [watch.look() for _ in range(30)] == [[]] * 30
    assert watch.status(run) is DagsterRunStatus.QUEUED


def test_while_nobody_looks_nobody_is_silent(
    watch: Watch, changed: House, instance: DagsterInstance
):
    """The log may have been away for the run as well, or the machine asleep."""
    run, opened = started(changed, instance)
    watch.look()
    assert watch.look(after=3600) == []
    changed.log.iterations.heartbeat(opened, now() + timedelta(hours=1))
    assert watch.look() == []
    assert watch.look(after=3600) == []
    assert watch.status(run) is DagsterRunStatus.STARTED


def test_a_beat_that_is_old_by_any_clock_takes_two_looks_only(
    watch: Watch, changed: House, instance: DagsterInstance
):
    run, opened = started(changed, instance)
    changed.log.iterations.heartbeat(opened, now() - timedelta(minutes=5))
    assert watch.look() == []
    assert watch.look() == [run.run_id]


def test_silence_begins_anew_with_each_beat(
    watch: Watch, changed: House, instance: DagsterInstance
):
    _, opened = started(changed, instance)
    watch.look()
    watch.look()
    changed.log.iterations.heartbeat(opened, now() + timedelta(seconds=9))
    assert watch.look() == []
    assert watch.look() == []
    assert watch.look() != []
    assert 2 * TICK >= SILENT_SECONDS


def test_a_silent_run_without_our_tags_is_found_by_its_iteration(
    watch: Watch, changed: House, instance: DagsterInstance
):
    run, opened = started(changed, instance)
    by_hand = make_run(instance, DagsterRunStatus.STARTED, {})
    changed.database("update mo_iscp_iterations set run_id = ?", by_hand.run_id)
    instance.report_run_failed(run)
    looks = [watch.look() for _ in range(3)]
    assert looks == [[], [], [by_hand.run_id]]
    assert watch.status(by_hand) is DagsterRunStatus.FAILURE
    assert opened not in [record.id for record in changed.log.iterations.open()]


def test_a_silent_run_that_is_being_canceled_ends_canceled(
    watch: Watch, changed: House, instance: DagsterInstance
):
    run, _ = started(changed, instance)
    instance.report_run_canceling(run)
    assert [len(watch.look()) for _ in range(3)] == [0, 0, 1]
    assert watch.status(run) is DagsterRunStatus.CANCELED
    settle(changed, instance)
    assert (changed.job().state, changed.job().attempt) == (JobState.CANCELED, 0)

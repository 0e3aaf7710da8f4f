"""Random histories: whatever happens, no version is skipped or applied twice, and nobody waits
for those who can't go.
"""

from __future__ import annotations

from datetime import timedelta

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from iscp_dagster.errors import PermanentError
from iscp_dagster.rules.model import IterationKind, Job, JobState, TableKey
from iscp_dagster.rules.plan import Plan, plan
from iscp_dagster_tests.rules.builders import job
from iscp_dagster_tests.rules.world import World

TABLES = [TableKey("sys", "db", "one"), TableKey("sys", "db", "two")]
NAMES = ["a", "b", "c", "d", "e"]
CATCH_UP, SNAPSHOT, TAIL = IterationKind.CATCH_UP, IterationKind.SNAPSHOT, IterationKind.TAIL

tables = st.sampled_from(TABLES)
names = st.sampled_from(NAMES)
triggers = st.sampled_from(
    [
        *[{}] * 6,
        {"independent": True},
        {"trigger": "greedy"},
        {"trigger": "periodic", "interval": "15s", "share": True},
        {"trigger": "periodic", "interval": "60s"},
    ]
)
limits = st.fixed_dictionaries(
    {
        "priority": st.integers(-1, 1),
        "max_versions": st.sampled_from([2, 5, 100]),
        "max_bytes": st.sampled_from([9, 10**6]),
    }
)
specs = st.builds(lambda trigger, limit: {**trigger, **limit}, triggers, limits)
endings = st.sampled_from(
    [*[None] * 4, TimeoutError("slow"), KeyboardInterrupt(), PermanentError("broken")]
)


class Histories(RuleBasedStateMachine):
    """Users, tables and machines do as they please; every tick is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(TABLES)

    @initialize(specs=st.lists(specs, min_size=len(NAMES), max_size=len(NAMES)))
    def begin(self, specs):
        for name, spec in zip(NAMES, specs, strict=True):
            self.world.register(TABLES[0], name, **spec)
        self.world.settle()

    @rule(table=tables, data=st.lists(st.integers(0, 5), min_size=1, max_size=6))
    def commit(self, table, data):
        for size in data:
            self.world.commit(table, data=size > 1, size=size)

    @rule(slots=st.sampled_from([None, None, 0, 1, 2]))
    def tick(self, slots):
        self._tick(slots)

    @precondition(lambda self: self.world.flights)
    @rule(data=st.data(), ending=endings, failing=st.sets(names, max_size=2))
    def end_and_tick(self, data, ending, failing):
        self.world.end(data.draw(st.sampled_from(sorted(self.world.flights))), ending, failing)
        self._tick(None)

    @rule(table=tables, seconds=st.sampled_from([1, 60, 400]), size=st.integers(1, 9))
    def change_and_tick(self, table, seconds, size):
        self.world.commit(table, size=size)
        self.world.wait(seconds)
        self._tick(None)

    @rule(
        data=st.data(),
        what=st.sampled_from(
            ["register", "register", "drop", "pause", "resume", "repair", "alter"]
        ),
    )
    def steer(self, data, what):
        world = self.world
        if what == "register" or not world.live():
            world.register(data.draw(tables), data.draw(names), **data.draw(specs))
            return
        row = data.draw(st.sampled_from(world.live()))
        match what:
            case "drop":
                world.write(row.job_id, drop_at=world.now)
            case "pause":
                world.write(row.job_id, paused_at=world.now)
            case "resume":
                world.write(row.job_id, paused_at=None)
            case "repair":
                world.repair(row)
            case _:
                world.write(row.job_id, spec=job("x", **data.draw(specs)).spec)

    @rule(
        data=st.data(),
        table=tables,
        what=st.sampled_from(["kill", "restart", "flush", "forget", "outage"]),
    )
    def something_breaks(self, data, table, what):
        world = self.world
        match what:
            case "kill" if world.flights:
                world.kill(data.draw(st.sampled_from(sorted(world.flights))))
            case "outage":
                for run_id in list(world.flights):
                    world.end(run_id, ConnectionError("no Spark"))
            case "flush":
                world.flush()
            case "forget":
                world.forget(
                    table, world.sources[table].head.version - data.draw(st.integers(0, 5))
                )
            case _:
                world.restart()

    def _tick(self, slots):
        before = self.world.jobs(), self.world.probe(), self.world.in_flight()
        planned = self.world.tick(slots)
        check(planned, *before, slots)

    def teardown(self):
        """Once changes and failures stop, every job comes to the newest version of its table."""
        self.world.heal()
        self.world.settle()
        for row in self.world.live():
            source, index = self.world.sources[row.key.table_key], self.world.indexes[row.job_id]
            assert self.world.watermark(row.key) == source.head.version
            assert index.versions == source.changed(-1, source.head.version)


TestHistories = Histories.TestCase


def check(planned: Plan, jobs: list[Job], probed, in_flight, slots) -> None:
    """What holds for every plan."""
    by_id = {row.job_id: row for row in jobs}
    everything = [*planned.iterations, *planned.waiting]
    _everybody_is_told(planned, jobs)
    _nobody_starts_twice(everything, in_flight)
    for iteration in everything:
        members = [by_id[job_id] for job_id in iteration.job_ids]
        _may_start(members, planned.now)
        _window_fits(iteration, members, probed[iteration.table])
    for free in {slots, 1, 2}:
        limited = plan(jobs, probed, in_flight, planned.now, free_slots=free)
        _slots_go_by_priority(limited, free)
    _same_plan(planned, plan(jobs[::-1], probed, in_flight[::-1], planned.now, free_slots=slots))
    unlimited = plan(jobs, probed, in_flight, planned.now)
    for table in probed:
        _convoys_keep_order(table, unlimited, jobs, probed[table], in_flight)
    _barred_jobs_hold_nobody(unlimited, jobs, probed, in_flight)
    _new_jobs_hold_nobody(unlimited, jobs, probed, in_flight)


def _convoys_keep_order(table, planned, jobs, history, in_flight):
    """One convoy, one catch-up; the convoy stands still only for itself or a fresh last hop."""
    mine = {row.job_id: row for row in jobs if row.key.table_key == table and _shares(row)}
    flying = [flight for flight in in_flight if {*flight.job_ids} & mine.keys()]
    starting = [it for it in planned.iterations if {*it.job_ids} & mine.keys()]
    aloft = {job_id for flight in flying for job_id in flight.job_ids}
    ready = [row for row in mine.values() if row.job_id in aloft or _is_ready(row, planned.now)]
    top = max((row.watermark.version for row in ready), default=-1)
    for kind in (TAIL, CATCH_UP):
        new = [it for it in starting if it.kind is kind]
        # An altered trigger may bring a second one in flight into the convoy, never start one.
        assert len(new) + any(flight.kind is kind for flight in flying) <= 1
    last_hops = [
        trip
        for trip in (*flying, *starting)
        if trip.kind is CATCH_UP and trip.attempt == 0 and trip.window.end.version == top
    ]
    if last_hops:
        assert not [it for it in starting if it.kind is TAIL]
    on_its_way = any(flight.kind is TAIL for flight in flying)
    for row in ready:
        at_top = row.watermark.version == top >= 0 and row.job_id not in aloft
        changed = any(c.data_change and c.version > top for c in history)
        if at_top and changed and not last_hops and not on_its_way:
            went = any(row.job_id in it.job_ids for it in starting)
            assert went or row.job_id in planned.moves


def _shares(row):
    trigger = row.spec.trigger
    usable = row.drop_at is None and row.paused_at is None and row.state is not JobState.ERROR
    return trigger.kind == "default" and not trigger.independent and usable


def _is_ready(row, now):
    resting = row.state in (JobState.COMPLETED, JobState.CANCELED)
    return resting and (row.next_attempt_at is None or row.next_attempt_at <= now)


def _everybody_is_told(planned, jobs):
    assert {row.job_id for row, _ in planned.reasons()} == {row.job_id for row in jobs}
    assert all(reason for _, reason in planned.reasons())
    assert sum(planned.counts.values()) == len({row.key.table_key for row in jobs})


def _nobody_starts_twice(everything, in_flight):
    flying = [job_id for flight in in_flight for job_id in flight.job_ids]
    starting = [job_id for iteration in everything for job_id in iteration.job_ids]
    assert len({*flying, *starting}) == len(flying) + len(starting)
    assert all(len(set(it.job_names)) == len(it.job_names) for it in everything)


def _may_start(members, now):
    for row in members:
        assert row.drop_at is None
        assert row.paused_at is None
        assert row.state in (JobState.COMPLETED, JobState.CANCELED)
        assert row.next_attempt_at is None or row.next_attempt_at <= now
        interval = row.spec.trigger.interval
        if interval is not None and not row.is_new:
            assert now - row.watermark.time >= interval


def _window_fits(iteration, members, history):
    window = iteration.window
    assert {row.watermark.version for row in members} == {window.start.version}
    assert window.start.version < window.end.version <= history.head.version
    if window.start.version + 1 < history.first_version:
        assert iteration.kind is SNAPSHOT
    commits = [c for c in history if window.start < c.ts <= window.end]
    assert not commits or str(commits[-1].ts) == str(window.end)
    if iteration.kind is not SNAPSHOT:
        assert window.versions <= min(row.spec.max_window_versions for row in members)
        size = sum(commit.bytes for commit in commits if commit.data_change)
        assert window.versions == 1 or size <= min(row.spec.max_window_bytes for row in members)
        assert any(commit.data_change for commit in commits)


def _slots_go_by_priority(planned, slots):
    if slots is not None:
        assert len(planned.iterations) <= slots
        assert len(planned.iterations) == slots or not planned.waiting
    lowest = min((it.priority for it in planned.iterations), default=0)
    assert not planned.iterations or all(it.priority <= lowest for it in planned.waiting)


def _same_plan(one, other):
    assert _to_the_letter(one) == _to_the_letter(other)


def _to_the_letter(planned):
    """A plan with the times that do not count when watermarks are compared."""
    return (
        [(repr(it), it.run_key) for it in (*planned.iterations, *planned.waiting)],
        sorted((job_id, str(moved)) for job_id, moved in planned.moves.items()),
        sorted((str(key), str(moved)) for key, moved in planned.checked.items()),
        planned.orphans,
        [(row.job_id, reason) for row, reason in planned.reasons()],
        str(planned),
    )


def _barred_jobs_hold_nobody(planned, jobs, probed, in_flight):
    """Without those that are dropped, paused, in error or backing off the plan is the same."""
    flying = {job_id for flight in in_flight for job_id in flight.job_ids}

    def is_barred(row):
        waits = row.next_attempt_at is not None and planned.now < row.next_attempt_at
        out = row.drop_at is not None or row.paused_at is not None or row.state is JobState.ERROR
        return out or (waits and row.job_id not in flying)

    others = [row for row in jobs if not is_barred(row)]
    assert plan(others, probed, in_flight, planned.now).iterations == planned.iterations


def _new_jobs_hold_nobody(planned, jobs, probed, in_flight):
    """Without new jobs and their first syncs the others do the same."""
    new = {row.job_id for row in jobs if row.is_new}
    others = [row for row in jobs if row.job_id not in new]
    flights = [flight for flight in in_flight if not new & {*flight.job_ids}]
    without = plan(others, probed, flights, planned.now)
    assert [it for it in planned.iterations if not new & {*it.job_ids}] == [*without.iterations]


ONE = TABLES[0]


def _convoy_with_a_laggard(behind: int, hop: int) -> World:
    """Two jobs at the newest version and one far behind, which goes in hops."""
    world = World([ONE])
    world.register(ONE, "fast")
    world.register(ONE, "fellow")
    world.register(ONE, "slow", max_versions=hop)
    world.settle()
    slow = world.find(ONE.job("slow"))
    world.write(slow.job_id, paused_at=world.now)
    for _ in range(behind):
        world.commit(ONE)
    for _ in range(2):
        world.tick()
        for run_id in list(world.flights):
            world.end(run_id)
    world.write(slow.job_id, paused_at=None)
    return world


@given(
    behind=st.integers(1, 40), hop=st.integers(2, 10), duration=st.integers(1, 4), pace=st.just(1)
)
def test_a_healthy_laggard_always_gets_back_in_while_the_table_keeps_changing(
    behind, hop, duration, pace
):
    world = _convoy_with_a_laggard(behind, hop * duration)
    ages: dict[str, int] = {}
    for _ in range(40 * duration + 4 * behind):
        for _ in range(pace):
            world.commit(ONE)
        world.tick()
        for run_id in list(world.flights):
            ages[run_id] = ages.get(run_id, 0) + 1
            if ages[run_id] >= duration:
                world.end(run_id)
        if world.watermark(ONE.job("slow")) == world.watermark(ONE.job("fast")):
            return
    raise AssertionError("the laggard never came back")


@given(behind=st.integers(1, 30), hop=st.integers(1, 40))
def test_a_failing_catch_up_holds_the_convoy_once_at_most(behind, hop):
    world = _convoy_with_a_laggard(behind, hop)
    held = 0
    for _ in range(30):
        world.commit(ONE)
        before = world.watermark(ONE.job("fast"))
        world.tick()
        for run_id in list(world.flights):
            world.end(run_id, failing=["slow"])
        held += world.watermark(ONE.job("fast")) == before
    assert held <= 1


@given(behind=st.integers(10, 40), hop=st.integers(1, 5))
def test_a_catch_up_that_takes_for_ever_never_holds_the_convoy(behind, hop):
    world = _convoy_with_a_laggard(behind, hop)
    for _ in range(20):
        world.commit(ONE)
        head = world.sources[ONE].head.version
        world.tick()
        for run_id, (flight, _) in list(world.flights.items()):
            if "slow" not in flight.job_names:
                world.end(run_id)
        assert world.watermark(ONE.job("fast")) == head
        assert world.watermark(ONE.job("slow")) < head - behind


@given(
    interval=st.sampled_from([15, 35, 60]),
    commits=st.lists(st.booleans(), min_size=20, max_size=60),
)
def test_a_periodic_job_starts_only_when_its_interval_has_passed_since_its_watermark(
    interval, commits
):
    world = World([ONE])
    world.register(ONE, "p", trigger="periodic", interval=f"{interval}s")
    pause, starts = timedelta(seconds=interval), []
    for changed in commits:
        if changed:
            world.commit(ONE)
        for iteration in world.tick().iterations:
            if not iteration.window.start.is_zero:
                assert world.now - iteration.window.start.time >= pause
                starts.append(world.now)
        for run_id in list(world.flights):
            world.end(run_id)
    # A watermark is at most as old as the start before it, hence two starts an interval at most.
    assert all(third - first >= pause for first, third in zip(starts, starts[2:], strict=False))

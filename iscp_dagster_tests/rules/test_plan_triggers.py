"""Each line of the trigger rules, as a sentence."""

from __future__ import annotations

from datetime import timedelta

from iscp_dagster.rules.model import TS, IterationKind, JobState, JobStatus, TableKey
from iscp_dagster.rules.plan import plan
from iscp_dagster_tests.rules.builders import (
    NOW,
    TABLE,
    commit_time,
    flight,
    history,
    job,
    tick,
    trips,
    ts,
)

CATCH_UP, SNAPSHOT = IterationKind.CATCH_UP, IterationKind.SNAPSHOT


def test_a_new_job_alone_on_its_table_syncs_up_to_the_newest_version():
    assert trips(tick([job("a")], history(8)).iterations) == {"a": (-1, 8, "snapshot")}


def test_a_new_job_does_not_ask_whether_the_table_changed():
    quiet = history(8, quiet=range(9))
    assert trips(tick([job("a")], quiet).iterations) == {"a": (-1, 8, "snapshot")}


def test_a_new_job_on_an_empty_table_still_gets_its_iteration():
    assert trips(tick([job("a")], history(0, quiet=[0])).iterations) == {"a": (-1, 0, "snapshot")}


def test_a_new_job_meets_the_sharing_jobs_where_they_stand():
    planned = tick([job("a"), job("b", 5)], history(8))
    assert trips(planned.iterations) == {"a": (-1, 5, "snapshot"), "b": (5, 8, "tail")}


def test_a_new_job_that_goes_alone_syncs_up_to_the_newest_version():
    jobs = [job("i", independent=True), job("g", trigger="greedy"), job("b", 5)]
    assert trips(tick(jobs, history(8)).iterations) == {
        "i": (-1, 8, "snapshot"),
        "g": (-1, 8, "snapshot"),
        "b": (5, 8, "tail"),
    }


def test_a_new_job_ignores_sharing_jobs_that_are_not_healthy():
    jobs = [job("a"), job("b", 5, paused_at=NOW), job("c", 6, state=JobState.ERROR)]
    assert trips(tick(jobs, history(8)).iterations) == {"a": (-1, 8, "snapshot")}


def test_new_jobs_each_get_an_iteration_of_their_own():
    planned = tick([job("a"), job("b")], history(8))
    assert trips(planned.iterations) == {"a": (-1, 8, "snapshot"), "b": (-1, 8, "snapshot")}


def test_a_new_job_syncs_to_the_newest_version_when_the_others_stand_before_what_is_left():
    planned = tick([job("a"), job("b", 2)], history(8, first=5))
    assert trips(planned.iterations)["a"] == (-1, 8, "snapshot")


def test_a_snapshot_is_not_capped():
    planned = tick([job("a", max_versions=2, max_bytes=1)], history(8))
    assert trips(planned.iterations) == {"a": (-1, 8, "snapshot")}


def test_a_new_job_does_not_suspend_its_siblings():
    jobs = [job("a"), job("b", 5), job("c", 5)]
    syncing = flight((-1, 5), "a", kind=SNAPSHOT)
    assert trips(tick(jobs, history(8), syncing).iterations) == {"b+c": (5, 8, "tail")}


def test_the_convoy_travels_in_one_iteration():
    planned = tick([job("a", 5), job("b", 5), job("c", 5)], history(8))
    assert trips(planned.iterations) == {"a+b+c": (5, 8, "tail")}


def test_the_convoy_waits_for_its_own_iteration():
    jobs = [job("a", 5), job("b", 5)]
    planned = tick(jobs, history(8), flight((5, 7), "a"))
    assert not planned.iterations
    assert planned.reason(TABLE.job("b")) == "waits for the iteration of a"


def test_the_convoy_does_not_wait_for_an_iteration_of_jobs_that_are_gone():
    dropped, new = job("a", 5, job_id=1, drop_at=NOW), job("b", 5)
    planned = tick([dropped, new], history(8), flight((5, 7), "a", job_ids=(1,)))
    assert trips(planned.iterations) == {"b": (5, 8, "tail")}


def test_a_laggard_catches_up_to_the_convoy_and_the_convoy_waits_for_its_last_hop():
    planned = tick([job("a", 3), job("b", 5)], history(8))
    assert trips(planned.iterations) == {"a": (3, 5, "catch-up")}
    assert planned.reason(TABLE.job("b")) == "waits for a to catch up"


def test_the_convoy_waits_for_a_last_hop_in_flight():
    catching_up = flight((3, 5), "a", kind=CATCH_UP)
    assert not tick([job("a", 3), job("b", 5)], history(8), catching_up).iterations


def test_a_catch_up_towards_where_the_convoy_no_longer_stands_holds_nobody():
    catching_up = flight((3, 5), "a", kind=CATCH_UP)
    planned = tick([job("a", 3), job("b", 7)], history(8), catching_up)
    assert trips(planned.iterations) == {"b": (7, 8, "tail")}


def test_a_long_catch_up_goes_in_hops_and_only_the_last_holds_the_convoy():
    planned = tick([job("a", 0, max_versions=2), job("b", 5)], history(8))
    assert trips(planned.iterations) == {"a": (0, 2, "catch-up"), "b": (5, 8, "tail")}


def test_a_catch_up_that_has_failed_before_holds_nobody():
    planned = tick([job("a", 3, attempt=1), job("b", 5)], history(8))
    assert trips(planned.iterations) == {"a": (3, 5, "catch-up"), "b": (5, 8, "tail")}
    again = flight((3, 5), "a", kind=CATCH_UP, attempt=1)
    planned = tick([job("a", 3, attempt=1), job("b", 5)], history(8), again)
    assert trips(planned.iterations) == {"b": (5, 8, "tail")}


def test_one_catch_up_at_a_time_and_the_furthest_behind_first():
    jobs = [job("a", 3), job("b", 1), job("c", 5)]
    planned = tick(jobs, history(5))
    assert trips(planned.iterations) == {"b": (1, 5, "catch-up")}
    assert (
        planned.reason(TABLE.job("a")) == "behind the others at v5; those further behind go first"
    )
    planned = tick(jobs, history(5), flight((1, 5), "b", kind=CATCH_UP))
    assert not planned.iterations
    assert planned.reason(TABLE.job("a")) == "behind the others at v5; waits for the catch-up of b"


def test_a_laggard_whose_turn_has_not_come_holds_nobody():
    jobs = [job("a", 0, max_versions=2), job("b", 3), job("c", 5)]
    planned = tick(jobs, history(8), flight((0, 2), "a", kind=CATCH_UP))
    assert trips(planned.iterations) == {"c": (5, 8, "tail")}


def test_laggards_at_one_watermark_go_together():
    planned = tick([job("a", 3), job("b", 3), job("c", 5)], history(5))
    assert trips(planned.iterations) == {"a+b": (3, 5, "catch-up")}


def test_a_laggard_in_backoff_lets_the_next_one_go():
    waits = job("a", 1, attempt=2, next_attempt_at=NOW + timedelta(seconds=9))
    planned = tick([waits, job("b", 3), job("c", 5)], history(5))
    assert trips(planned.iterations) == {"b": (3, 5, "catch-up")}


def test_a_laggard_over_versions_that_changed_nothing_moves_in_memory():
    planned = tick([job("a", 3), job("b", 5)], history(8, quiet=[4, 5]))
    assert trips(planned.iterations) == {"b": (5, 8, "tail")}
    assert dict(planned.moves) == {job("a").job_id: ts(5)}


def test_an_independent_job_neither_waits_nor_is_waited_for():
    jobs = [job("i", 2, independent=True), job("a", 3), job("b", 5)]
    planned = tick(jobs, history(8))
    assert trips(planned.iterations) == {"i": (2, 8, "tail"), "a": (3, 5, "catch-up")}
    ahead = [job("i", 8, independent=True), job("b", 5)]
    assert trips(tick(ahead, history(8)).iterations) == {"b": (5, 8, "tail")}


def test_a_greedy_job_goes_every_tick_on_its_own():
    jobs = [job("g", 5, trigger="greedy"), job("h", 5, trigger="greedy"), job("a", 5)]
    planned = tick(jobs, history(8), flight((5, 7), "a"))
    assert trips(planned.iterations) == {"g": (5, 8, "tail"), "h": (5, 8, "tail")}


def test_a_periodic_job_waits_until_its_interval_has_passed():
    start = commit_time(5)
    every_minute = job("p", 5, trigger="periodic", interval="60s")
    early = tick([every_minute], history(8), now=start + timedelta(seconds=59.5))
    assert not early.iterations
    assert early.reason(TABLE.job("p")) == "due in 1 s"
    on_time = tick([every_minute], history(8), now=start + timedelta(seconds=60))
    assert trips(on_time.iterations) == {"p": (5, 8, "tail")}


def test_a_check_that_found_nothing_starts_the_interval_again():
    every_minute = job("p", 8, trigger="periodic", interval="60s")
    planned = tick([every_minute], history(8))
    assert not planned.iterations
    assert planned.moves[every_minute.job_id].time == NOW
    moved = job("p", 8, trigger="periodic", interval="60s", checked=NOW)
    later = tick([moved], history(9), now=NOW + timedelta(seconds=20))
    assert later.reason(TABLE.job("p")) == "due in 40 s"


def test_a_quiet_table_is_checked_for_a_periodic_job_when_its_interval_has_passed():
    for age, moves in ((59, 0), (60, 1)):
        checked = NOW - timedelta(seconds=age)
        row = job("p", 8, trigger="periodic", interval="60s", checked=checked)
        assert len(tick([row], history(8)).moves) == moves


def test_a_new_interval_counts_at_once_and_the_old_one_never_again():
    now = commit_time(5) + timedelta(seconds=30)
    old = job("p", 5, trigger="periodic", interval="20s")
    assert tick([old], history(8), now=now).iterations
    altered = job("p", 5, trigger="periodic", interval="1h")
    assert not tick([altered], history(8), now=now).iterations


def test_a_periodic_job_shares_a_window_only_if_it_may():
    sharing = job("p", 5, trigger="periodic", interval="20s", share=True)
    alone = job("q", 5, trigger="periodic", interval="20s")
    planned = tick([sharing, alone, job("a", 5)], history(8))
    assert trips(planned.iterations) == {"a+p": (5, 8, "tail"), "q": (5, 8, "tail")}


def test_a_periodic_job_that_shares_goes_alone_when_nobody_goes_from_there():
    sharing = job("p", 3, trigger="periodic", interval="20s", share=True)
    planned = tick([sharing, job("a", 5)], history(8))
    assert trips(planned.iterations) == {"p": (3, 8, "tail"), "a": (5, 8, "tail")}


def test_a_periodic_job_that_shares_is_never_early():
    sharing = job("p", 5, trigger="periodic", interval="1h", share=True)
    planned = tick([sharing, job("a", 5)], history(8), now=commit_time(10))
    assert trips(planned.iterations) == {"a": (5, 8, "tail")}


def test_an_independent_job_never_shares():
    sharing = job("p", 5, trigger="periodic", interval="20s", share=True, independent=True)
    planned = tick([sharing, job("a", 5)], history(8))
    assert trips(planned.iterations) == {"p": (5, 8, "tail"), "a": (5, 8, "tail")}


def test_watermarks_compare_by_version_whatever_their_times_say():
    jobs = [job("a", 5, checked=NOW), job("b", 5, checked=NOW - timedelta(days=30))]
    assert trips(tick(jobs, history(8)).iterations) == {"a+b": (5, 8, "tail")}


def test_a_change_is_seen_though_its_commit_time_is_before_the_watermarks():
    ahead_of_the_clock = job("a", 5, checked=NOW + timedelta(days=1))
    assert trips(tick([ahead_of_the_clock], history(6)).iterations) == {"a": (5, 6, "tail")}


def test_the_end_of_a_window_is_the_newest_version_at_the_probe_and_not_the_clock():
    (iteration,) = tick([job("a", 5)], history(8)).iterations
    assert (iteration.window.end.version, iteration.window.end.time) == (8, commit_time(8))


def test_the_smallest_cap_of_its_jobs_counts_for_a_shared_window():
    by_versions = [job("a", 5), job("b", 5, max_versions=2)]
    assert trips(tick(by_versions, history(20)).iterations) == {"a+b": (5, 7, "tail")}
    by_bytes = [job("a", 5, max_versions=6), job("b", 5, max_bytes=30)]
    planned = tick(by_bytes, history(20, size=10))
    assert trips(planned.iterations) == {"a+b": (5, 8, "tail")}


def test_the_rest_of_a_capped_window_follows_without_gap_or_overlap():
    seen, at = [], 0
    while at < 10:
        (iteration,) = tick([job("a", at, max_versions=3)], history(10)).iterations
        assert iteration.window.start.version == at
        at = iteration.window.end.version
        seen.append(iteration.window.versions)
    assert seen == [3, 3, 3, 1]


def test_a_capped_window_never_starts_with_versions_that_changed_nothing():
    planned = tick([job("a", 2, max_versions=3)], history(10, quiet=range(3, 9)))
    assert not planned.iterations
    assert planned.moves[job("a").job_id] == ts(8)


def test_commits_without_data_are_no_change():
    planned = tick([job("a", 5), job("b", 5)], history(8, quiet=[6, 7, 8]))
    assert not planned.iterations
    assert set(planned.moves.values()) == {ts(8)}
    assert {move.time for move in planned.moves.values()} == {NOW}
    assert planned.reason(TABLE.job("a")) == "unchanged at v8"


def test_lost_history_runs_without_a_check_and_rebuilds_from_a_snapshot():
    planned = tick([job("a", 3), job("b", 3)], history(8, first=5, quiet=range(9)))
    assert trips(planned.iterations) == {"a+b": (3, 8, "snapshot")}
    assert "history before v5 is gone" in planned.reason(TABLE.job("a"))


def test_history_that_begins_right_after_the_watermark_is_not_lost():
    assert trips(tick([job("a", 4)], history(8, first=5)).iterations) == {"a": (4, 8, "tail")}


def test_a_laggard_that_lost_its_history_meets_the_others_and_holds_nobody():
    planned = tick([job("a", 2), job("b", 6)], history(8, first=5))
    assert trips(planned.iterations) == {"a": (2, 6, "snapshot"), "b": (6, 8, "tail")}


def test_jobs_that_cannot_start_hold_nobody_up():
    later = NOW + timedelta(seconds=30)
    jobs = [
        job("dropped", 7, drop_at=NOW),
        job("paused", 7, paused_at=NOW),
        job("broken", 7, state=JobState.ERROR, status=JobStatus(error_code=10_030)),
        job("retrying", 7, attempt=1, next_attempt_at=later),
        job("canceled", 7, state=JobState.CANCELED, next_attempt_at=later),
        job("orphan", 7, state=JobState.RUNNING),
        job("a", 5),
        job("b", 5),
    ]
    assert trips(tick(jobs, history(8)).iterations) == {"a+b": (5, 8, "tail")}


def test_a_job_whose_wait_is_over_starts_where_it_stood():
    jobs = [
        job("a", 5, attempt=3, next_attempt_at=NOW),
        job("i", 4, independent=True, state=JobState.CANCELED, next_attempt_at=NOW),
    ]
    planned = tick(jobs, history(8))
    assert trips(planned.iterations) == {"a": (5, 8, "tail"), "i": (4, 8, "tail")}
    assert {it.job_names: it.attempt for it in planned.iterations} == {("a",): 3, ("i",): 0}


def test_a_job_called_pending_without_a_run_is_an_orphan_and_does_not_start_yet():
    planned = tick([job("a", 5, job_id=7, state=JobState.PENDING)], history(8))
    assert planned.orphans == (7,)
    assert not planned.iterations
    assert not tick([job("a", 5, state=JobState.PENDING)], history(8), flight((5, 8), "a")).orphans


def test_a_late_run_of_an_old_generation_does_not_hold_the_new_one():
    old, new = job("a", 5, job_id=1, drop_at=NOW), job("a", job_id=2)
    planned = tick([old, new], history(8), flight((5, 8), "a", job_ids=(1,)))
    assert [it.job_ids for it in planned.iterations] == [(2,)]
    assert trips(planned.iterations) == {"a": (-1, 8, "snapshot")}


def test_two_generations_of_one_name_never_share_a_run():
    live, building = job("a", 5, job_id=1), job("a", 5, job_id=2, live_job_id=1)
    planned = tick([live, building, job("b", 5, job_id=3)], history(8))
    assert sorted(it.job_ids for it in planned.iterations) == [(1, 3), (2,)]


def test_tables_do_not_disturb_each_other():
    other = TableKey("sys", "db", "other")
    jobs = [job("a", 3), job("b", 5), job("a", 5, table=other)]
    planned = plan(jobs, {TABLE: history(8), other: history(8)}, [], NOW)
    assert {(it.table, it.job_names) for it in planned.iterations} == {
        (TABLE, ("a",)),
        (other, ("a",)),
    }


def test_a_window_starts_at_the_watermark_as_it_is():
    (iteration,) = tick([job("a", 5, checked=NOW)], history(8)).iterations
    assert str(iteration.window.start) == str(TS(5, NOW))


def test_a_probe_older_than_the_watermark_moves_nothing_back():
    planned = tick([job("a", 9)], history(8))
    assert not planned.iterations
    assert not planned.moves

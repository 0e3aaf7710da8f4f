"""The plan as data: order, slots, reasons, failures, custom triggers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from iscp_dagster.errors import SourceTableMissing, SourceTableReplaced, UnknownJob
from iscp_dagster.rules.model import (
    IterationKind,
    JobState,
    JobStatus,
    ProbeFailed,
    TableKey,
    TableMissing,
    TableReplaced,
)
from iscp_dagster.rules.plan import plan
from iscp_dagster.rules.triggers import Due, Waiting
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


def table(number: int) -> TableKey:
    return TableKey("sys", "db", f"t{number}")


def test_a_tick_explains_itself_in_one_sentence():
    now = commit_time(5) + timedelta(seconds=18)
    jobs = [job("a", 8, table=table(number)) for number in range(4)]
    jobs.append(job("p", 5, table=table(4), trigger="periodic", interval="60s"))
    jobs.append(job("a", 5, table=table(5)))
    tables = {table(number): history(8) for number in range(6)}
    flying = [flight((5, 8), "a", table=table(5))]
    planned = plan(jobs, tables, flying, now)
    assert str(planned) == "6 tables: 4 unchanged, 1 due in 42 s, 1 in flight"
    assert planned.summary() == str(planned)


def test_the_sentence_counts_each_table_once():
    jobs = [job("a", 5), job("b", 8), job("c", 8, paused_at=NOW)]
    assert str(tick(jobs, history(8))) == "1 table: 1 starting"
    assert str(tick(jobs, history(8), free_slots=0)) == "1 table: 1 waiting for a slot"
    assert str(tick([], history(8))) == "no tables"


def test_a_table_that_nobody_asked_is_kept_for_the_next_tick():
    planned = plan([job("a", 5)], {}, [], NOW)
    assert planned.reason(TABLE.job("a")) == "its table was not probed in this tick"
    assert str(planned) == "1 table: 1 not probed"


def test_a_failed_probe_is_told_and_keeps_the_job():
    planned = tick([job("a", 5), job("b")], ProbeFailed("permission denied"))
    assert not planned.iterations
    assert not planned.failures
    assert "permission denied" in planned.reason(TABLE.job("a"))
    assert str(planned) == "1 table: 1 unreadable"


@pytest.mark.parametrize(
    ("probed", "error"),
    [
        (TableMissing("no _delta_log"), SourceTableMissing),
        (TableReplaced("f00"), SourceTableReplaced),
    ],
)
def test_a_table_that_is_gone_fails_its_jobs_for_good(probed, error):
    later = NOW + timedelta(seconds=9)
    jobs = [
        job("a", 5, job_id=1),
        job("b", job_id=2),
        job("c", 5, job_id=3, attempt=1, next_attempt_at=later),
        job("d", 5, job_id=4, paused_at=NOW),
        job("e", 5, job_id=5, state=JobState.ERROR, status=JobStatus(error_code=10_001)),
        job("f", 5, job_id=6),
    ]
    planned = tick(jobs, probed, flight((5, 8), "f"))
    assert set(planned.failures) == {1, 2, 3}
    assert {type(found) for found in planned.failures.values()} == {error}
    assert all(found.permanent for found in planned.failures.values())
    assert str(TABLE) in planned.reason(TABLE.job("a"))


def test_every_job_gets_a_reason():
    later = NOW + timedelta(seconds=9)
    status = JobStatus(error_code=20, error_msg="no Spark")
    jobs = [
        job("flying", 5),
        job("dropped", 5, drop_at=NOW),
        job("paused", 5, paused_at=NOW),
        job("broken", 5, state=JobState.ERROR, status=status),
        job("retrying", 5, attempt=2, next_attempt_at=later, status=status),
        job("canceled", 5, state=JobState.CANCELED, next_attempt_at=later),
        job("orphan", 5, state=JobState.RUNNING),
        job("unknown", 5, trigger="lunar"),
        job("new"),
        job("done", 8, independent=True),
    ]
    planned = tick(jobs, history(8), flight((5, 8), "flying"))
    assert {row.key.name: reason for row, reason in planned.reasons()} == {
        "flying": "in flight: tail (v5, v8] is running",
        "dropped": "dropped",
        "paused": "paused; `iscp resume` lets it go on",
        "broken": "in error 20: no Spark; `iscp repair` lets it go on",
        "retrying": "attempt 2 failed with 20: no Spark; tries again in 9 s",
        "canceled": "canceled; may start again in 9 s",
        "orphan": "the log says running, but no run of it is alive",
        "unknown": "trigger 'lunar' is not installed; `iscp alter --trigger` takes another",
        "new": "starting: snapshot (0, v5]; new: first sync up to v5, to meet the others",
        "done": "unchanged at v8",
    }


def test_a_quiet_table_has_reasons_too():
    jobs = [
        job("a", 8),
        job("p", 8, trigger="periodic", interval="60s", checked=NOW - timedelta(seconds=1)),
    ]
    planned = tick(jobs, history(8))
    assert planned.reason(TABLE.job("a")) == "unchanged at v8"
    assert planned.reason(TABLE.job("p")) == "unchanged at v8; due in 59 s"
    assert planned.reason(jobs[0].job_id) == "unchanged at v8"
    assert {str(found) for found in planned.checked.values()} == {"2026-11-18T06:00:00.000Z-8"}
    with pytest.raises(UnknownJob):
        planned.reason(TABLE.job("nobody"))


def test_a_job_that_cannot_start_says_so_on_a_quiet_table_as_well():
    planned = tick([job("a", 8, paused_at=NOW), job("b", 8)], history(8))
    assert planned.reason(TABLE.job("a")).startswith("paused")
    assert planned.reason(TABLE.job("b")) == "unchanged at v8"
    assert str(planned) == "1 table: 1 unchanged"


def test_a_key_asks_for_the_generation_that_answers_queries():
    jobs = [
        job("a", 8, job_id=1, drop_at=NOW),
        job("a", 8, job_id=2),
        job("a", job_id=3, live_job_id=2),
    ]
    planned = tick(jobs, history(8))
    assert planned.reason(TABLE.job("a")) == planned.reason(2) == "unchanged at v8"
    assert planned.reason(3).startswith("starting: snapshot")


def test_iterations_start_by_priority_then_lag_then_key_as_slots_are_free():
    jobs = [
        job("late", 2, table=table(1)),
        job("later", 1, table=table(2)),
        job("urgent", 7, table=table(3), priority=5),
        job("b", 2, table=table(0)),
    ]
    tables = {table(number): history(8) for number in range(4)}
    planned = plan(jobs, tables, [], NOW, free_slots=2)
    assert [it.job_names for it in planned.iterations] == [("urgent",), ("later",)]
    assert [it.job_names for it in planned.waiting] == [("b",), ("late",)]
    assert "waits for a free slot, 1 before it" in planned.reason(table(1).job("late"))
    assert not plan(jobs, tables, [], NOW).waiting


def test_lag_is_how_long_a_change_has_waited_and_not_how_many_versions():
    jobs = [job("many", 5, table=table(0)), job("old", 1, table=table(1))]
    tables = {table(0): history(90), table(1): history(4)}
    planned = plan(jobs, tables, [], NOW)
    assert [it.job_names for it in planned.iterations] == [("old",), ("many",)]


def test_a_shared_iteration_has_the_priority_of_its_most_urgent_job():
    (iteration,) = tick([job("a", 5, priority=-3), job("b", 5, priority=7)], history(8)).iterations
    assert iteration.priority == 7


def test_a_catch_up_that_urgent_jobs_wait_for_is_as_urgent():
    jobs = [
        job("laggard", 3, table=table(0), priority=-5),
        job("urgent", 5, table=table(0), priority=9),
        job("other", 5, table=table(1), priority=1),
    ]
    tables = {table(0): history(8), table(1): history(8)}
    planned = plan(jobs, tables, [], NOW, free_slots=1)
    assert trips(planned.iterations) == {"laggard": (3, 5, "catch-up")}


def test_the_same_plan_comes_out_of_jobs_grouped_by_table():
    jobs = [job("a", 5), job("b", 5)]
    grouped = plan({TABLE: jobs}, {TABLE: history(8)}, [], NOW)
    assert grouped == tick(jobs, history(8))


def test_a_retry_never_asks_for_a_run_key_that_is_spent():
    first = job("a", 5)
    histories = {
        "first": first,
        "retried": replace(first, attempt=1, lsn=3),
        "canceled": replace(first, state=JobState.CANCELED, next_attempt_at=NOW, lsn=3),
        "canceled twice": replace(first, state=JobState.CANCELED, next_attempt_at=NOW, lsn=6),
        "next generation": replace(first, job_id=first.job_id + 1),
    }
    keys = {name: tick([row], history(8)).iterations[0].run_key for name, row in histories.items()}
    assert len(set(keys.values())) == len(histories)
    assert tick([first], history(8)).iterations[0].run_key == keys["first"]
    assert tick([first], history(9)).iterations[0].run_key != keys["first"]
    assert tick([first, job("b", 5)], history(8)).iterations[0].run_key != keys["first"]


def test_an_iteration_names_its_jobs_with_generation_and_trigger():
    jobs = [
        job("p", 5, job_id=4, lsn=2, trigger="periodic", interval="1s", share=True),
        job("a", 5, job_id=9, lsn=1, attempt=2),
    ]
    (iteration,) = tick(jobs, history(8)).iterations
    assert (iteration.job_names, iteration.job_ids, iteration.lsns) == (("a", "p"), (9, 4), (1, 2))
    assert (iteration.trigger, iteration.attempt) == ("default,periodic", 2)
    assert iteration.kind is IterationKind.TAIL


class TestCustomTriggers:
    def test_a_custom_trigger_decides_who_and_up_to_where(self):
        def every_other_version(row, view):
            return Due(ts(view.head.version // 2 * 2), "even versions only")

        triggers = {"even": every_other_version}
        planned = tick([job("a", 5, trigger="even")], history(7), triggers=triggers)
        assert trips(planned.iterations) == {"a": (5, 6, "tail")}
        assert planned.iterations[0].reason == "even versions only"
        assert planned.iterations[0].trigger == "even"

    def test_a_custom_trigger_may_wait_and_say_why(self):
        triggers = {"lunar": lambda row, view: Waiting("no full moon")}
        planned = tick([job("a", 5, trigger="lunar")], history(7), triggers=triggers)
        assert planned.reason(TABLE.job("a")) == "no full moon"

    def test_a_custom_trigger_may_share(self):
        triggers = {"along": lambda row, view: Due(view.head, "along", share=True)}
        planned = tick([job("a", 5, trigger="along"), job("b", 5)], history(7), triggers=triggers)
        assert trips(planned.iterations) == {"a+b": (5, 7, "tail")}

    def test_a_custom_trigger_is_capped_and_checked_like_any_other(self):
        triggers = {"now": lambda row, view: Due(view.head, "now")}
        capped = job("a", 5, trigger="now", max_versions=1)
        assert trips(tick([capped], history(7), triggers=triggers).iterations) == {
            "a": (5, 6, "tail")
        }
        assert not tick([capped], history(7, quiet=[6, 7]), triggers=triggers).iterations

    def test_a_custom_trigger_that_raises_stops_only_its_own_job(self):
        def broken(row, view):
            raise ZeroDivisionError("by zero")

        jobs = [job("a", 5, trigger="broken"), job("b", 5)]
        planned = tick(jobs, history(7), triggers={"broken": broken})
        assert trips(planned.iterations) == {"b": (5, 7, "tail")}
        assert planned.reason(TABLE.job("a")) == (
            "trigger 'broken' failed: ZeroDivisionError: by zero"
        )

    @pytest.mark.parametrize("answer", [None, True, "now"])
    def test_a_custom_trigger_that_answers_nonsense_is_told_so(self, answer):
        triggers = {"odd": lambda row, view: answer}
        planned = tick([job("a", 5, trigger="odd")], history(7), triggers=triggers)
        assert "not Due or Waiting" in planned.reason(TABLE.job("a"))

    def test_a_custom_trigger_cannot_pass_the_newest_version(self):
        triggers = {"far": lambda row, view: Due(ts(99), "far")}
        planned = tick([job("a", 5, trigger="far")], history(7), triggers=triggers)
        assert not planned.iterations
        assert "seen up to v7" in planned.reason(TABLE.job("a"))

    def test_a_built_in_trigger_cannot_be_replaced(self):
        triggers = {"default": lambda row, view: Waiting("hijacked")}
        assert tick([job("a", 5)], history(7), triggers=triggers).iterations

    def test_an_unknown_trigger_yields_a_reason_and_disturbs_nobody(self):
        planned = tick([job("a", trigger="lunar"), job("b", 5)], history(7))
        assert trips(planned.iterations) == {"b": (5, 7, "tail")}
        assert "not installed" in planned.reason(TABLE.job("a"))

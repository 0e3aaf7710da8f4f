from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from iscp_dagster.errors import ClaimLost, SourceTableMissing
from iscp_dagster.rules.backoff import after_cancel, next_attempt
from iscp_dagster.rules.model import JobState, JobStatus, Stage, Window
from iscp_dagster.rules.outcome import Outcome, advance, classify, lost, outcome_of
from iscp_dagster_tests.rules.builders import NOW, job, ts

WINDOW = Window(ts(5), ts(8))
FAILED_TWICE = job(
    "a", 5, attempt=2, next_attempt_at=NOW, status=JobStatus(error_code=20, error_msg="no Spark")
)


def test_success_moves_the_watermark_to_the_end_of_the_window_and_clears_the_past():
    assert outcome_of(FAILED_TWICE, WINDOW, None, NOW) == Outcome(
        JobState.COMPLETED, ts(8), Stage.TAIL, 0, None, 0, ""
    )


def test_the_first_sync_brings_a_job_to_its_tail():
    assert advance(job("a"), Window(ts(-1), ts(8))).stage is Stage.TAIL


def test_a_window_applied_before_takes_no_watermark_back():
    assert advance(job("a", 9), WINDOW).watermark == ts(9)


def test_a_failed_iteration_leaves_the_watermark_where_it_was():
    outcome = outcome_of(FAILED_TWICE, WINDOW, TimeoutError("too slow"), NOW)
    assert outcome == Outcome(
        JobState.COMPLETED,
        ts(5),
        Stage.TAIL,
        3,
        next_attempt(FAILED_TWICE.job_id, 3, NOW),
        1,
        "TimeoutError: too slow",
    )


def test_a_failed_first_sync_stays_where_it_was():
    building = replace(job("a"), stage=Stage.BACKFILL)
    outcome = outcome_of(building, Window(ts(-1), ts(8)), ValueError("x"), NOW)
    assert (outcome.watermark, outcome.stage) == (ts(-1), Stage.BACKFILL)


def test_a_permanent_error_is_kept_and_stops_the_job():
    outcome = outcome_of(FAILED_TWICE, WINDOW, SourceTableMissing("table t is gone"), NOW)
    assert (outcome.state, outcome.watermark, outcome.next_attempt_at) == (
        JobState.ERROR,
        ts(5),
        None,
    )
    assert outcome.error_code == SourceTableMissing.code >= 10_000
    assert outcome.error_msg.startswith("table t is gone; ")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), SystemExit(1)])
def test_a_cancel_is_no_failure_and_is_not_retried_at_once(error):
    outcome = outcome_of(FAILED_TWICE, WINDOW, error, NOW)
    assert outcome == Outcome(
        JobState.CANCELED, ts(5), Stage.TAIL, 2, after_cancel(NOW), 20, "no Spark"
    )


def test_a_run_that_died_without_a_word_counts_as_an_attempt():
    outcome = lost(replace(FAILED_TWICE, state=JobState.RUNNING), NOW)
    assert (outcome.state, outcome.attempt, outcome.error_code) == (JobState.COMPLETED, 3, 12)
    assert outcome.watermark == ts(5)


def test_our_own_errors_keep_their_code_and_cure():
    code, message = classify(ClaimLost("job a moved"))
    assert code == 11
    assert message == f"job a moved; {ClaimLost.cure}"


def test_an_unknown_error_is_temporary_and_says_its_type():
    assert classify(OSError(28, "No space left")) == (1, "OSError: [Errno 28] No space left")
    assert classify(RuntimeError()) == (1, "RuntimeError")


def test_a_message_is_one_line_of_bounded_length():
    code, message = classify(RuntimeError("line\n\tstack " * 1000))
    assert code == 1
    assert "\n" not in message
    assert len(message) == 1000
    assert message.endswith("…")

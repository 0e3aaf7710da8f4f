from __future__ import annotations

from datetime import timedelta

import pytest

from iscp_dagster.rules.backoff import after_cancel, delay, next_attempt
from iscp_dagster_tests.rules.builders import NOW


@pytest.mark.parametrize(("attempt", "full"), [(1, 5), (2, 10), (3, 20), (6, 160), (7, 300)])
def test_the_delay_doubles_from_five_seconds_to_five_minutes(attempt, full):
    for job_id in range(200):
        assert full * 0.8 <= delay(job_id, attempt).total_seconds() <= full


def test_the_delay_never_passes_five_minutes_however_often_it_failed():
    assert delay(1, 10**6) <= timedelta(minutes=5)


def test_the_delay_grows_with_each_attempt_until_the_limit():
    delays = [delay(7, attempt) for attempt in range(1, 7)]
    assert delays == sorted(set(delays))


def test_jobs_that_failed_together_do_not_come_back_together():
    assert len({delay(job_id, 3) for job_id in range(100)}) == 100


def test_the_same_failure_always_gives_the_same_time():
    assert next_attempt(42, 2, NOW) == next_attempt(42, 2, NOW) == NOW + delay(42, 2)
    assert delay(42, 2) != delay(42, 2 + 1) / 2


def test_a_canceled_run_waits_a_minute():
    assert after_cancel(NOW) == NOW + timedelta(minutes=1)

"""Tests of which windows may be forgotten."""

from __future__ import annotations

from iscp_dagster.rules.model import Window
from iscp_dagster.rules.retention import prunable_windows
from iscp_dagster_tests.rules.builders import ts


def window(start: int, end: int) -> str:
    return Window(ts(start), ts(end)).partition_key


KEYS = [window(v - 1, v) for v in range(6)]


def test_the_newest_windows_stay_and_the_oldest_go_first() -> None:
    assert prunable_windows(KEYS, lowest=5, in_flight=(), keep=2) == KEYS[:4]
    assert prunable_windows(reversed(KEYS), lowest=5, in_flight=(), keep=2) == KEYS[:4]
    assert prunable_windows(KEYS, lowest=5, in_flight=(), keep=6) == []


def test_a_window_that_a_job_may_still_need_stays() -> None:
    assert prunable_windows(KEYS, lowest=2, in_flight=(), keep=1) == KEYS[:3]
    assert prunable_windows(KEYS, lowest=-1, in_flight=(), keep=1) == []


def test_a_window_in_flight_stays() -> None:
    assert prunable_windows(KEYS, lowest=5, in_flight={KEYS[1]}, keep=1) == [
        KEYS[0],
        *KEYS[2:5],
    ]


def test_a_wide_window_counts_by_where_it_ends() -> None:
    wide = window(-1, 5)
    assert prunable_windows([wide, *KEYS[:2]], lowest=4, in_flight=(), keep=0) == KEYS[:2]


def test_a_key_that_is_no_window_is_nobody_s_to_delete() -> None:
    keys = ["2026-11-18", "a_b", "", *KEYS]
    assert prunable_windows(keys, lowest=5, in_flight=(), keep=0) == KEYS

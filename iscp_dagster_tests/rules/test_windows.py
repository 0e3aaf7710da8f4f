from __future__ import annotations

import pytest

from iscp_dagster.rules.windows import Changes
from iscp_dagster_tests.rules.builders import commit_time, history, ts

MB = 2**20


def test_a_change_is_found_only_inside_the_window():
    changes = Changes(history(10, quiet=[6, 7, 9, 10]))
    assert changes.first_change(ts(5), ts(10)) == 8
    assert changes.first_change(ts(5), ts(7)) is None
    assert changes.first_change(ts(7), ts(8)) == 8
    assert changes.first_change(ts(8), ts(10)) is None


def test_what_the_probe_did_not_read_counts_as_changed():
    changes = Changes(history(10, since=7, quiet=[8, 9, 10]))
    assert changes.first_change(ts(7), ts(10)) is None
    assert changes.first_change(ts(6), ts(10)) == 7


def test_history_is_lost_when_the_next_version_is_gone():
    changes = Changes(history(10, first=6))
    assert changes.lost(ts(4))
    assert not changes.lost(ts(5))
    assert not changes.lost(ts(-1))


@pytest.mark.parametrize(("limit", "end"), [(1, 3), (4, 6), (8, 10), (100, 10)])
def test_a_window_holds_at_most_so_many_versions(limit, end):
    assert Changes(history(10)).cap(ts(2), ts(10), limit, 10**9) == ts(end)


@pytest.mark.parametrize(
    ("limit", "end"), [(1, 3), (10 * MB, 3), (30 * MB, 5), (49 * MB, 6), (10**9, 10)]
)
def test_a_window_holds_at_most_so_many_bytes_but_never_less_than_one_version(limit, end):
    assert Changes(history(10, size=10 * MB)).cap(ts(2), ts(10), 10**9, limit) == ts(end)


def test_bytes_that_nobody_reads_are_not_counted():
    optimized = history(10, quiet=[4], size={4: 100 * MB, 5: 1, 6: 100 * MB})
    assert Changes(optimized).cap(ts(2), ts(10), 100, 10 * MB) == ts(5)


def test_a_capped_window_ends_at_a_commit_with_its_time():
    end = Changes(history(10)).cap(ts(2), ts(10), 4, 10**9)
    assert (end.version, end.time) == (6, commit_time(6))


def test_a_window_over_unread_versions_ends_at_a_commit_that_was_read():
    assert Changes(history(10, since=7)).cap(ts(2), ts(10), 2, 10**9) == ts(8)
    assert Changes(history(10, since=7)).cap(ts(2), ts(5), 2, 10**9) == ts(5)


def test_lag_is_counted_from_the_oldest_change_that_waits():
    changes = Changes(history(10, quiet=[6, 7]))
    assert changes.waiting_since(ts(5)) == commit_time(8)
    assert changes.waiting_since(ts(10)) == commit_time(10)

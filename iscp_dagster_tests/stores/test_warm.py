"""What is kept in memory, and what goes first."""

from __future__ import annotations

from iscp_dagster.stores.warm import Warm


def test_the_value_that_was_not_used_for_longest_goes_first() -> None:
    warm: Warm[str] = Warm(2)
    warm.put("a", "first")
    warm.put("b", "second")
    assert warm.get("a") == "first"
    warm.put("c", "third")
    assert [warm.get(key) for key in "abc"] == ["first", None, "third"]


def test_heavy_values_make_room_for_one_another_and_too_heavy_ones_do_not_stay() -> None:
    warm: Warm[str] = Warm(10, most_weight=5)
    warm.put("a", "light", 2)
    warm.put("b", "heavy", 4)
    assert (warm.get("a"), warm.get("b")) == (None, "heavy")
    warm.put("b", "lighter", 1)
    warm.put("c", "heavy", 4)
    assert (warm.get("b"), warm.get("c")) == ("lighter", "heavy")
    warm.put("d", "too heavy", 6)
    assert len(warm) == 0


def test_all_can_be_forgotten() -> None:
    warm: Warm[str] = Warm(10, most_weight=5)
    warm.put("a", "value", 5)
    warm.clear()
    warm.put("b", "value", 5)
    assert (warm.get("a"), warm.get("b")) == (None, "value")

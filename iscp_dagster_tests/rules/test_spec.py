from __future__ import annotations

from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import given

from iscp_dagster.errors import UsageError
from iscp_dagster.rules.spec import (
    JobSpec,
    TriggerSpec,
    format_duration,
    merge_spec,
    parse_duration,
    parse_spec,
)

PERIODIC = {"kind": "periodic", "interval": "30s", "share": True}


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("30s", 30), ("5m", 300), ("2h", 7200), (" 1d ", 86400)]
)
def test_a_duration_is_a_number_with_its_unit(text, seconds):
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "30", "0s", "-5s", "1.5h", "5 m", "1w", "٣s", None, 30, True])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@given(st.integers(1, 10**9))
def test_a_duration_reads_back_as_it_was_written(milliseconds):
    duration = timedelta(milliseconds=milliseconds)
    if len(format_duration(duration).rstrip("msdh")) <= 9:
        assert parse_duration(format_duration(duration)) == duration


def test_a_spec_reads_back_from_json():
    spec = parse_spec({"type": "fulltext", "columns": ["a", "b"], "trigger": PERIODIC})
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.trigger.interval == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "type"),
        ({"type": "mirror", "priority": 101}, "priority"),
        ({"type": "mirror", "priority": -101}, "priority"),
        ({"type": "mirror", "max_window_versions": 0}, "max_window_versions"),
        ({"type": "mirror", "max_window_bytes": 0}, "max_window_bytes"),
        ({"type": "mirror", "timeout": "soon"}, "timeout"),
        ({"type": "mirror", "colour": "red"}, "colour"),
        ({"type": "mirror", "owners": ["somebody"]}, "owners"),
        ({"type": "mirror", "trigger": {"kind": "periodic"}}, "interval"),
        ({"type": "mirror", "trigger": {"kind": "greedy", "interval": "5s"}}, "interval"),
        ({"type": "mirror", "trigger": {"kind": "periodic", "interval": "x"}}, "trigger.interval"),
    ],
)
def test_a_wrong_field_is_named_in_one_line(values, field):
    with pytest.raises(UsageError) as caught:
        parse_spec(values)
    assert field in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_custom_trigger_may_have_an_interval_or_none():
    assert TriggerSpec(kind="lunar").interval is None
    assert TriggerSpec.model_validate({"kind": "lunar", "interval": "5s"}).interval is not None


def test_fields_left_empty_keep_their_value():
    current = parse_spec(
        {
            "type": "mirror",
            "columns": ["a"],
            "priority": 3,
            "trigger": PERIODIC,
            "owners": ["a@b.org"],
        }
    )
    empty = {"columns": [], "priority": None, "trigger": {}, "description": "", "owners": ()}
    assert merge_spec(current, empty) == current
    assert merge_spec(current, {}) == current


def test_a_given_field_takes_the_place_of_the_old_one():
    current = parse_spec({"type": "mirror", "priority": 3})
    merged = merge_spec(current, {"priority": 0, "max_window_versions": 7})
    assert (merged.priority, merged.max_window_versions) == (0, 7)


def test_a_trigger_is_merged_field_by_field():
    current = parse_spec({"type": "mirror", "trigger": PERIODIC})
    merged = merge_spec(current, {"trigger": {"interval": "1h"}})
    assert merged.trigger == TriggerSpec(
        kind="periodic", interval=timedelta(hours=1), share=True, independent=False
    )


def test_another_kind_of_trigger_drops_what_belonged_to_the_old_one():
    current = parse_spec({"type": "mirror", "trigger": {**PERIODIC, "independent": True}})
    merged = merge_spec(current, {"trigger": {"kind": "greedy"}})
    assert merged.trigger == TriggerSpec(kind="greedy", independent=True)


@pytest.mark.parametrize(
    "patch", [{"type": "vector"}, {"columns": ["b"]}, {"options": {"by": "section"}}]
)
def test_what_an_index_is_built_from_is_fixed_when_it_is_created(patch):
    current = parse_spec({"type": "lookup", "columns": ["a"], "options": {"by": "author"}})
    with pytest.raises(UsageError, match="fixed when the job was created"):
        merge_spec(current, patch)


def test_naming_the_same_build_again_is_no_change():
    current = parse_spec({"type": "lookup", "columns": ["a"], "options": {"by": "author"}})
    same = {"type": "lookup", "columns": ["a"], "options": {"by": "author"}}
    assert merge_spec(current, same) == current


def test_a_patch_is_checked_like_a_new_spec():
    current = parse_spec({"type": "mirror"})
    with pytest.raises(UsageError, match="interval"):
        merge_spec(current, {"trigger": {"kind": "periodic"}})
    with pytest.raises(UsageError, match="priority"):
        merge_spec(current, {"priority": 1000})

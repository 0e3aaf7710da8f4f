"""A tick with nothing to do is cheap, and grows with the number of jobs and no faster."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest

from iscp_dagster.rules.model import History, Job, TableKey
from iscp_dagster.rules.plan import Plan, plan
from iscp_dagster_tests.rules.builders import NOW, history, job

JOBS_PER_TABLE = 10
Registry = tuple[dict[TableKey, list[Job]], dict[TableKey, History]]


@pytest.fixture(scope="module")
def registry() -> Registry:
    """10,000 tables with 10 jobs each; one job in ten is periodic."""
    keys = [TableKey("sys", "db", f"t{number}") for number in range(10_000)]
    samples = [job(f"j{number}", 8) for number in range(JOBS_PER_TABLE - 1)]
    checked = NOW - timedelta(seconds=5)
    samples.append(job("p", 8, trigger="periodic", interval="60s", checked=checked))
    groups = {
        key: [
            replace(row, key=key.job(row.key.name), job_id=number * JOBS_PER_TABLE + place)
            for place, row in enumerate(samples)
        ]
        for number, key in enumerate(keys)
    }
    quiet = history(8, since=8)
    return groups, dict.fromkeys(keys, quiet)


def test_a_hundred_thousand_idle_jobs_are_planned_in_a_fraction_of_a_second(registry: Registry):
    groups, tables = registry
    planned, seconds = _fastest_of_three(groups, tables)
    assert str(planned) == "10000 tables: 10000 unchanged"
    assert not planned.moves
    assert seconds < 0.4


def test_the_cost_of_an_idle_tick_grows_linearly(registry: Registry):
    groups, tables = registry
    few = dict(list(groups.items())[:100])
    _, small = _fastest_of_three(few, tables)
    _, large = _fastest_of_three(groups, tables)
    assert large < 100 * small * 5


def test_only_the_tables_that_changed_are_planned(registry: Registry):
    groups, tables = registry
    changed = list(tables)[::100]
    planned = plan(groups, {**tables, **dict.fromkeys(changed, history(9, since=8))}, [], NOW)
    assert {iteration.table for iteration in planned.iterations} == set(changed)
    assert {len(iteration.job_ids) for iteration in planned.iterations} == {JOBS_PER_TABLE - 1}
    assert str(planned) == "10000 tables: 100 starting, 9900 unchanged"


def _fastest_of_three(groups, tables) -> tuple[Plan, float]:
    planned, fastest = None, float("inf")
    for _ in range(3):
        started = time.perf_counter()
        planned = plan(groups, tables, [], NOW)
        fastest = min(fastest, time.perf_counter() - started)
    assert planned is not None
    return planned, fastest

"""Custom triggers, found by entry point in a package outside this one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from iscp_dagster.orchestration.runner import Runner
from iscp_dagster.orchestration.triggers import known_triggers, load_triggers
from iscp_dagster.rules.triggers import greedy
from iscp_dagster_tests.orchestration.house import House

_CODE = """
from iscp_dagster.rules.triggers import Due, Waiting

def every_third(job, table):
    if table.head.version % 3:
        return Waiting("waits for a version that three divides")
    return Due(table.head, "three divides it")
"""
_POINTS = """
[iscp_dagster.triggers]
every_third = shop_triggers:every_third
greedy = shop_triggers:every_third
"""


@pytest.fixture
def plugged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that offers a trigger, and tries to replace a built-in one."""
    info = tmp_path / "site" / "shop_triggers-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop_triggers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_POINTS)
    (info.parent / "shop_triggers.py").write_text(_CODE)
    monkeypatch.syspath_prepend(info.parent)


@pytest.mark.usefixtures("plugged_in")
def test_an_installed_trigger_is_known_and_a_built_in_one_stays_what_it_is():
    assert known_triggers() == ("default", "every_third", "greedy", "periodic")
    assert set(load_triggers()) == {"every_third"}
    assert load_triggers().get("greedy", greedy) is greedy


@pytest.mark.usefixtures("plugged_in")
def test_a_job_with_an_installed_trigger_starts_when_it_says_so(house: House):
    house.table()
    house.standing("items", "look", 0, trigger={"kind": "every_third"})
    runner = Runner(house.log)
    seen = []
    for _ in range(3):
        house.commit()
        tick = runner.tick([], datetime.now(UTC))
        seen.append([str(iteration.window) for iteration in tick.plan.iterations])
    assert seen == [[], [], ["(v0, v3]"]]

"""Materializing a window by hand, as `dagster asset materialize` and the UI do."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from click import ClickException
from dagster import DagsterRunStatus
from deltalake import DeltaTable

from iscp_dagster.orchestration.names import partitions_name
from iscp_dagster.rules.model import TS, JobState, Window
from iscp_dagster_tests.iteration.works import METADATA, Works, meanwhile

pytestmark = pytest.mark.spark

_DAGSTER = (sys.executable, "-m", "dagster")


@pytest.fixture(scope="module")
def _table() -> dict[str, bool]:
    return {}


@pytest.fixture
def hand(works: Works, _table: dict[str, bool]) -> Works:
    """A table `hand` with a job `look`, caught up."""
    if not _table:
        works.house.table("hand", rows=3)
        works.house.register("hand", "look")
        _table["made"] = True
    works.catch_up("hand")
    return works


def test_a_window_is_applied_and_then_applied_already(hand: Works):
    start = hand.house.head("hand")
    end = hand.house.commit("hand", rows=2)
    window = hand.house.window(start, end, "hand")
    run, told = hand.by_hand(window, "look", table="hand")
    assert (run.status, told) == (DagsterRunStatus.SUCCESS, "")
    done = hand.materializations("look", "hand")[0]
    assert done.metadata.keys() >= METADATA
    assert done.metadata["iscp/kind"].value == "tail"
    assert done.metadata["iscp/source_version"].value == end
    lineage: Any = done.metadata["dagster/column_lineage"].value
    (dep,) = lineage.deps_by_column["section"]
    assert (dep.asset_key.path, dep.column_name) == (["sys", "shop", "hand"], "section")
    before = state_of(hand)

    run, told = hand.by_hand(window, "look", table="hand")
    assert (run.status, told) == (DagsterRunStatus.SUCCESS, "")
    again, *others = hand.materializations("look", "hand")
    assert others[0] == done
    assert again.metadata.keys() >= METADATA
    assert again.partition == window.partition_key
    for name in ("iscp/watermark", "iscp/source_version", "dagster/row_count", "dagster/uri"):
        assert again.metadata[name] == done.metadata[name]
    assert again.metadata["iscp/kind"].value == "no-op"
    assert again.metadata["iscp/rows_upserted"].value == 0
    assert state_of(hand)["index"] == before["index"]
    job = hand.house.job("hand", "look")
    assert (job.state, job.watermark.version) == (JobState.COMPLETED, end)


def test_a_gap_is_refused_in_one_line_and_nothing_is_written(hand: Works):
    stands = hand.house.head("hand")
    hand.house.commit("hand")
    end = hand.house.commit("hand")
    before = state_of(hand)
    run, told = hand.by_hand(hand.house.window(end - 1, end, "hand"), "look", table="hand")
    assert run.status is DagsterRunStatus.FAILURE
    assert told == (
        f"window starts at v{end - 1}, the index sys/shop/hand/look stands at v{stands}; "
        "run `iscp sync`, or materialize the windows in between first"
    )
    assert state_of(hand) == before


def test_a_window_that_the_table_never_had_is_refused_and_nothing_is_written(hand: Works):
    stands = hand.house.head("hand")
    window = Window(hand.house.ts("hand", stands), TS(stands + 7))
    before = state_of(hand)
    run, told = hand.by_hand(window, "look", table="hand")
    assert run.status is DagsterRunStatus.FAILURE
    assert told.startswith(f"window ends at v{stands + 7}, sys/shop/hand stands at v{stands}; ")
    assert state_of(hand) == before


def test_a_window_that_nobody_planned_is_applied_and_a_partition_from_then_on(hand: Works):
    start = hand.house.head("hand")
    hand.house.commit("hand")
    window = hand.house.window(start, hand.house.commit("hand"), "hand")
    name = partitions_name(hand.house.job("hand", "look").key.table_key)
    assert not hand.instance.has_dynamic_partition(name, window.partition_key)
    run, told = hand.by_hand(window, "look", table="hand", known=False)
    assert (run.status, told) == (DagsterRunStatus.SUCCESS, "")
    assert hand.instance.has_dynamic_partition(name, window.partition_key)
    assert hand.materializations("look", "hand")[0].partition == window.partition_key


def test_an_empty_window_is_refused_and_nothing_is_written(hand: Works):
    before = state_of(hand)
    run, told = hand.by_hand("0_0", "look", table="hand", known=False)
    assert run.status is DagsterRunStatus.FAILURE
    assert told.startswith("the window 0_0 ")
    assert "\n" not in told
    assert state_of(hand) == before


@pytest.mark.parametrize("key", ["yesterday", "2026-11-18T05:49:00.123Z-9_0"])
def test_what_is_no_window_is_refused_before_there_is_a_run(hand: Works, key: str):
    before = state_of(hand)
    with pytest.raises(ClickException, match=r"^window: ") as refused:
        hand.by_hand(key, "look", table="hand", known=False)
    assert "\n" not in refused.value.message
    assert state_of(hand) == before


def test_dagsters_own_command_refuses_what_is_no_window_in_one_line(hand: Works):
    asked = ["-m", "iscp_dagster.definitions", "--select", "sys/shop/hand/look"]
    done = subprocess.run(
        [*_DAGSTER, "asset", "materialize", *asked, "--partition", "yesterday"],
        env={**os.environ, "DAGSTER_HOME": str(hand.house.settings.home)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "Error: window: 'yesterday' is not a window; write <from_ts>_<to_ts>, as in the UI"
    )


def test_a_job_in_error_is_refused_with_its_error(hand: Works, monkeypatch: pytest.MonkeyPatch):
    stands = hand.house.head("hand")
    window = hand.house.window(stands, hand.house.commit("hand"), "hand")
    monkeypatch.setenv("ISCP_FAULT", "fail@before_apply:look")
    hand.by_hand(window, "look", table="hand")
    monkeypatch.delenv("ISCP_FAULT")
    before = state_of(hand)
    _, told = hand.by_hand(window, "look", table="hand")
    assert told == (
        "sys/shop/hand/look stopped at error 10000: fault at before_apply:look; "
        "mend the cause, then `iscp repair`"
    )
    assert state_of(hand) == before
    assert hand.house.log.jobs.repair(hand.house.job("hand", "look").key)
    _, told = hand.by_hand(window, "look", table="hand")
    assert told == ""


def test_a_job_that_another_run_holds_is_refused_and_left_to_it(
    hand: Works, monkeypatch: pytest.MonkeyPatch
):
    stands = hand.house.head("hand")
    end = hand.house.commit("hand")
    window = hand.house.window(stands, end, "hand")
    monkeypatch.setenv("ISCP_FAULT", "pause@after_claim")
    with meanwhile(lambda: hand.by_hand(window, "look", table="hand"), "after_claim"):
        holder, before = hand.house.job("hand", "look").status.run_id, state_of(hand)
        _, told = hand.by_hand(window, "look", table="hand")
        assert told.startswith(f"sys/shop/hand/look is held by run {holder}; ")
        assert state_of(hand)["job"] == before["job"]
        monkeypatch.delenv("ISCP_FAULT")
    assert hand.house.job("hand", "look").watermark.version == end
    assert len(hand.materializations("look", "hand")) == before["events"] + 1


def state_of(works: Works) -> dict[str, Any]:
    """Everything a refused window must leave as it is."""
    job = works.house.job("hand", "look")
    return {
        "job": job,
        "iterations": works.house.log.iterations.list(),
        "index": DeltaTable(works.uri(job)).version(),
        "events": len(works.materializations("look", "hand")),
    }

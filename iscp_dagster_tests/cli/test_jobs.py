"""Tests of the commands that register, steer and list jobs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from iscp_dagster.joblog.iterations import ConsumerRecord
from iscp_dagster.rules.model import TS, IterationKind, JobState, JobStatus, TableKey, Window
from iscp_dagster_tests.cli.conftest import Iscp, assert_one_line
from iscp_dagster_tests.shop import NOW, Shop

Refused = Callable[..., str]

JOB_KEYS = [
    "account",
    "db",
    "table",
    "job",
    "job_id",
    "type",
    "trigger",
    "state",
    "watermark",
    "version",
    "lag_seconds",
    "attempt",
    "next_attempt_at",
    "error_code",
    "error_msg",
    "uri",
    "progress",
]
LOOKUP = ["--type", "lookup", "--option", "by=section"]
PERIODIC = ["--type", "mirror", "--trigger", "periodic", "--interval"]


@pytest.fixture(autouse=True)
def _items(shop: Shop) -> None:
    shop.add_table()


def test_a_new_job_is_listed_as_completed_at_zero(shop: Shop, iscp: Iscp) -> None:
    done = iscp("register", "shop.items", "by-section", *LOOKUP)
    assert (done.code, done.out, done.err) == (0, "sys/shop.items/by-section: registered\n", "")
    (row,) = iscp("jobs", "--json").json
    assert list(row) == JOB_KEYS
    assert row == {
        "account": "sys",
        "db": "shop",
        "table": "items",
        "job": "by-section",
        "job_id": 1,
        "type": "lookup",
        "trigger": "default",
        "state": "completed",
        "watermark": "0",
        "version": None,
        "lag_seconds": None,
        "attempt": 0,
        "next_attempt_at": None,
        "error_code": 0,
        "error_msg": "",
        "uri": f"{shop.home}/warehouse/_iscp/sys/shop/items/by-section/1",
        "progress": None,
    }


def test_a_name_that_is_alive_is_not_registered_again(shop: Shop, iscp: Iscp) -> None:
    iscp("register", "shop.items", "copy", "--type", "mirror", "--priority", "3")
    before = shop.contents()["mo_iscp_log"]
    done = iscp("register", "shop.items", "copy", *LOOKUP)
    assert (done.code, done.out) == (0, "sys/shop.items/copy: alive already\n")
    assert shop.contents()["mo_iscp_log"] == before


def test_a_dropped_name_comes_back_under_a_higher_generation_from_zero(
    shop: Shop, iscp: Iscp
) -> None:
    iscp("register", "shop.items", "copy", "--type", "mirror")
    advance(shop, "copy", version=0)
    assert iscp("jobs", "--json").json[0]["version"] == 0
    assert iscp("unregister", "shop.items", "copy").out == "sys/shop.items/copy: unregistered\n"
    assert iscp("jobs", "--json").json == []
    iscp("register", "shop.items", "copy", "--type", "mirror")
    (row,) = iscp("jobs", "--json").json
    assert (row["job_id"], row["watermark"], row["uri"][-2:]) == (2, "0", "/2")


def test_every_option_of_register_arrives_in_the_spec(iscp: Iscp) -> None:
    arguments = ["--type", "lookup", "--columns", "id, name", "--option", "by=section"]
    arguments += ["--option", "where=price > 10", "--trigger", "periodic", "--interval", "90s"]
    arguments += ["--share", "--independent", "--priority", "-7", "--timeout", "10m"]
    arguments += ["--lag-target", "2h", "--max-window-versions", "5", "--max-window-bytes", "1000"]
    arguments += ["--description", "by *section*", "--owner", "a@b.org", "--owner", "team:data"]
    assert iscp("register", "shop.items", "copy", *arguments).code == 0
    assert spec_of(iscp) == {
        "type": "lookup",
        "columns": ["id", "name"],
        "options": {"by": "section", "where": "price > 10"},
        "trigger": {"kind": "periodic", "interval": "90s", "share": True, "independent": True},
        "priority": -7,
        "timeout": "10m",
        "lag_target": "2h",
        "max_window_versions": 5,
        "max_window_bytes": 1000,
        "description": "by *section*",
        "owners": ["a@b.org", "team:data"],
    }


def test_options_win_over_the_spec_file_field_by_field(shop: Shop, iscp: Iscp) -> None:
    spec = {
        "type": "lookup",
        "options": {"by": "section", "where": "price > 1"},
        "trigger": {"kind": "periodic", "interval": "5m", "share": True},
        "priority": 4,
        "description": "from the file",
    }
    file = write_spec(shop, spec)
    given = ["--option", "by=name", "--interval", "30s", "--no-share", "--priority", "9"]
    assert iscp("register", "shop.items", "copy", "--spec", file, *given).code == 0
    found = spec_of(iscp)
    assert found["options"] == {"by": "name", "where": "price > 1"}
    assert found["trigger"]["kind"] == "periodic"
    assert found["trigger"]["interval"] == "30s"
    assert found["trigger"]["share"] is False
    assert found["priority"] == 9
    assert found["description"] == "from the file"


def test_what_status_prints_can_be_registered_again(shop: Shop, iscp: Iscp) -> None:
    iscp("register", "shop.items", "copy", *LOOKUP, "--priority", "5", "--timeout", "90s")
    file = write_spec(shop, spec_of(iscp))
    assert iscp("register", "shop.items", "twin", "--spec", file).code == 0
    assert spec_of(iscp, "twin") == spec_of(iscp, "copy")


def test_unregistering_what_is_not_there_says_so(iscp: Iscp) -> None:
    done = iscp("unregister", "shop.items", "nosuch")
    assert (done.code, done.out) == (0, "sys/shop.items/nosuch: was not registered\n")


def test_alter_changes_what_is_given_and_keeps_the_rest(iscp: Iscp) -> None:
    iscp("register", "shop.items", "copy", *PERIODIC, "5m", "--share", "--priority", "4")
    before = spec_of(iscp)
    done = iscp("alter", "shop.items", "copy", "--interval", "30s", "--timeout", "2h")
    assert (done.code, done.out) == (0, "sys/shop.items/copy: altered\n")
    trigger = {**before["trigger"], "interval": "30s"}
    assert spec_of(iscp) == {**before, "trigger": trigger, "timeout": "2h"}


def test_alter_to_another_trigger_drops_what_belonged_to_the_old_one(iscp: Iscp) -> None:
    iscp("register", "shop.items", "copy", *PERIODIC, "5m", "--share", "--independent")
    assert iscp("alter", "shop.items", "copy", "--trigger", "default").code == 0
    trigger = {"kind": "default", "interval": None, "share": False, "independent": True}
    assert spec_of(iscp)["trigger"] == trigger


def test_alter_can_say_no_and_zero(iscp: Iscp) -> None:
    iscp("register", "shop.items", "copy", *PERIODIC, "5m", "--share", "--priority", "4")
    iscp("alter", "shop.items", "copy", "--no-share", "--priority", "0")
    assert spec_of(iscp)["trigger"]["share"] is False
    assert spec_of(iscp)["priority"] == 0


def test_alter_takes_a_file_and_options_win_over_it(shop: Shop, iscp: Iscp) -> None:
    iscp("register", "shop.items", "copy", "--type", "mirror")
    file = write_spec(shop, {"priority": 4, "timeout": "5m", "description": "", "owners": []})
    assert iscp("alter", "shop.items", "copy", "--spec", file, "--priority", "6").code == 0
    assert (spec_of(iscp)["priority"], spec_of(iscp)["timeout"]) == (6, "5m")


def test_a_job_can_be_altered_and_dropped_while_its_table_is_away(shop: Shop, iscp: Iscp) -> None:
    path = shop.add_table("shop.gone")
    iscp("register", "shop.gone", "copy", "--type", "mirror")
    shutil.rmtree(path)
    assert iscp("alter", "shop.gone", "copy", "--priority", "3").code == 0
    (row,) = iscp("jobs", "--table", "shop.gone", "--json").json
    assert row["lag_seconds"] is None
    assert iscp("unregister", "shop.gone", "copy").code == 0


def test_pause_and_resume_say_what_they_did(iscp: Iscp) -> None:
    iscp("register", "shop.items", "copy", "--type", "mirror")
    assert iscp("pause", "shop.items", "copy").out == "sys/shop.items/copy: paused\n"
    assert iscp("pause", "shop.items", "copy").out == "sys/shop.items/copy: paused already\n"
    assert iscp("jobs", "--json").json[0]["progress"].startswith("paused since 20")
    assert "paused since" in iscp("jobs").out
    assert iscp("status", "shop.items", "copy", "--json").json["paused_at"] is not None
    assert iscp("resume", "shop.items", "copy").out == "sys/shop.items/copy: resumed\n"
    assert iscp("resume", "shop.items", "copy").out == "sys/shop.items/copy: was not paused\n"
    assert iscp("jobs", "--json").json[0]["progress"] is None


def test_repair_clears_the_error_and_keeps_the_watermark(shop: Shop, iscp: Iscp) -> None:
    iscp("register", "shop.items", "copy", "--type", "mirror")
    assert "nothing to repair" in iscp("repair", "shop.items", "copy").out
    fail(shop, "copy", code=10_033, message="column 'price' is gone")
    (row,) = iscp("jobs", "--state", "error", "--json").json
    assert (row["error_code"], row["error_msg"]) == (10_033, "column 'price' is gone")
    assert row["attempt"] == 3
    assert row["next_attempt_at"] == "2026-11-18T05:49:00.123Z"
    assert "column 'price' is gone" in iscp("jobs").out
    assert "repaired" in iscp("repair", "shop.items", "copy").out
    (row,) = iscp("jobs", "--json").json
    assert (row["state"], row["error_code"], row["error_msg"]) == ("completed", 0, "")
    assert (row["attempt"], row["next_attempt_at"], row["version"]) == (0, None, 0)


def test_jobs_are_chosen_by_state_account_and_table(shop: Shop, iscp: Iscp) -> None:
    shop.add_table("shop.items", account="other")
    shop.add_table("shop.more")
    iscp("register", "shop.items", "copy", "--type", "mirror")
    iscp("register", "shop.items", "copy", "--type", "mirror", "--account", "other")
    iscp("register", "shop.more", "copy", "--type", "mirror")
    fail(shop, "copy", code=10_000, message="broken")

    def chosen(*arguments: str) -> list[tuple[str, str]]:
        rows = iscp("jobs", "--json", *arguments).json
        return [(row["account"], row["table"]) for row in rows]

    assert chosen() == [("other", "items"), ("sys", "items"), ("sys", "more")]
    assert chosen("--account", "other") == [("other", "items")]
    assert chosen("--table", "shop.items") == [("sys", "items")]
    assert chosen("--table", "shop.items", "--account", "other") == [("other", "items")]
    assert chosen("--state", "error") == [("sys", "items")]
    assert chosen("--state", "running") == []


def test_lag_is_the_age_of_the_oldest_change_not_indexed(shop: Shop, iscp: Iscp) -> None:
    iscp("register", "shop.items", "copy", "--type", "mirror")
    advance(shop, "copy", version=0)
    assert iscp("jobs", "--json").json[0]["lag_seconds"] == 0
    path = shop.folder / "tables" / "sys" / "shop.items"
    from deltalake import DeltaTable

    DeltaTable(path).delete("id = 1")
    assert 0 < iscp("jobs", "--json").json[0]["lag_seconds"] < 60


def test_a_row_this_version_can_not_read_is_listed_with_all_keys(shop: Shop, iscp: Iscp) -> None:
    iscp("register", "shop.items", "copy", "--type", "mirror")
    iscp("register", "shop.items", "fine", "--type", "mirror")
    sql = "update mo_iscp_log set job_spec = :spec where job_name = 'copy'"
    shop.execute(sql, spec='{"type": "mirror", "from_the_future": 1}')
    broken, fine = iscp("jobs", "--json").json
    assert list(broken) == list(fine) == JOB_KEYS
    assert (broken["job"], broken["state"]) == ("copy", "unreadable")
    assert "from_the_future" in broken["error_msg"]
    assert fine["state"] == "completed"
    assert "unreadable" in iscp("jobs").out
    done = iscp("status", "shop.items", "copy")
    assert done.code == 1
    assert_one_line(done)
    assert iscp("unregister", "shop.items", "copy").code == 0


def test_people_read_columns_and_a_hint_where_there_is_nothing(iscp: Iscp) -> None:
    assert "iscp register" in iscp("jobs").out
    assert iscp("jobs", "--json").json == []
    iscp("register", "shop.items", "copy", *LOOKUP)
    header, row = iscp("jobs").out.splitlines()
    assert " ".join(header.split()[:8]) == "account db table job type trigger state version"
    assert " ".join(row.split()[:8]) == "sys shop items copy lookup default completed -"


def test_status_shows_one_field_a_line(iscp: Iscp) -> None:
    iscp("register", "shop.items", "copy", *LOOKUP, "--owner", "a@b.org")
    shown = dict(
        line.split(maxsplit=1) for line in iscp("status", "shop.items", "copy").out.splitlines()
    )
    assert shown["job"].strip() == "copy"
    assert shown["state"].strip() == "completed"
    assert shown["spec.options.by"].strip() == "section"
    assert shown["spec.trigger.kind"].strip() == "default"
    assert shown["spec.owners"].strip() == "a@b.org"
    assert "{" not in "".join(shown.values())


def test_iterations_tell_what_each_consumer_did(shop: Shop, iscp: Iscp) -> None:
    assert iscp("iterations", "--json").json == []
    assert "iscp sync" in iscp("iterations").out
    shop.add_table("shop.items", account="other")
    iterate(
        shop,
        "sys",
        [
            ConsumerRecord("a", 1, 3, 1, 2, 0.5),
            ConsumerRecord("b", 2, error_code=7, error_msg="full"),
        ],
    )
    iterate(shop, "other", [ConsumerRecord("a", 3, 8)])
    newest, oldest = iscp("iterations", "--json").json
    assert (newest["account"], oldest["account"]) == ("other", "sys")
    assert oldest["table"] == "shop.items"
    assert oldest["jobs"] == ["a", "b"]
    assert oldest["kind"] == "tail"
    assert oldest["window"] == f"{oldest['from_ts']}_{oldest['to_ts']}"
    assert oldest["rows_scanned"] == 10
    assert (oldest["rows_upserted"], oldest["rows_deleted"], oldest["rows_skipped"]) == (3, 1, 2)
    assert oldest["errors"] == ["b: full (7)"]
    assert [one["job"] for one in oldest["consumers"]] == ["a", "b"]
    assert oldest["start_at"] == "2026-11-18T05:49:00.123Z"
    for account, upserted in (("sys", 3), ("other", 8)):
        (row,) = iscp("iterations", "--account", account, "--json").json
        assert row["rows_upserted"] == upserted
    assert len(iscp("iterations", "--limit", "1", "--json").json) == 1
    assert iscp("iterations", "--table", "shop.more", "--json").json == []
    (row,) = iscp("iterations", "--table", "shop.items", "--json").json
    assert row["account"] == "sys"
    assert "b: full (7)" in iscp("iterations").out


def spec_of(iscp: Iscp, job: str = "copy") -> dict[str, Any]:
    return iscp("status", "shop.items", job, "--json").json["spec"]


def write_spec(shop: Shop, spec: object) -> str:
    path = shop.folder / "spec.json"
    path.write_text(spec if isinstance(spec, str) else json.dumps(spec), encoding="utf-8")
    return str(path)


def advance(shop: Shop, job: str, *, version: int) -> None:
    with shop.open_log() as log:
        found = log.jobs.get(TableKey.parse("shop.items").job(job))
        log.jobs.compare_and_set(found, watermark=TS(version, NOW))


def fail(shop: Shop, job: str, *, code: int, message: str) -> None:
    with shop.open_log() as log:
        found = log.jobs.get(TableKey.parse("shop.items").job(job))
        log.jobs.compare_and_set(
            found,
            state=JobState.ERROR,
            watermark=TS(0, NOW),
            attempt=3,
            next_attempt_at=NOW,
            status=JobStatus(error_code=code, error_msg=message),
        )


def iterate(shop: Shop, account: str, consumers: list[ConsumerRecord]) -> None:
    window = Window(TS(0, NOW), TS(1, NOW))
    with shop.open_log() as log:
        table = log.tables.get(TableKey.parse("shop.items", account))
        number = log.iterations.start(
            table,
            window,
            [one.job_name for one in consumers],
            kind=IterationKind.TAIL,
            run_id=f"run-{account}",
            attempt=0,
            now=NOW,
        )
        log.iterations.finish(number, now=NOW, rows_scanned=10, seconds=1.5, consumers=consumers)

"""Tests of what the log keeps about each iteration."""

from __future__ import annotations

import json
from datetime import timedelta

from iscp_dagster.joblog import JobLog
from iscp_dagster.joblog.iterations import ConsumerRecord
from iscp_dagster.rules.model import TS, IterationKind, TableKey, Window
from iscp_dagster_tests.joblog.crew import Crew
from iscp_dagster_tests.joblog.databases import NOW, TABLE, add_table, dump

LATER = NOW + timedelta(seconds=30)
WINDOW = Window(TS(10, NOW), TS(12, LATER))
GOOD = ConsumerRecord("copy", 1, rows_upserted=5, rows_deleted=2, rows_skipped=1, seconds=0.25)
BAD = ConsumerRecord("words", 2, error_code=21, error_msg='it\'s\nfull: "大"')


def start(
    log: JobLog, run_id: str = "run-1", table: TableKey = TABLE, window: Window = WINDOW
) -> int:
    return log.iterations.start(
        log.tables.get(table),
        window,
        ["copy", "words"],
        kind=IterationKind.TAIL,
        run_id=run_id,
        attempt=2,
        now=NOW,
        session_id=f"session-of-{run_id}",
    )


def test_an_iteration_that_has_started_is_open(log: JobLog) -> None:
    started = start(log)
    (found,) = log.iterations.open()
    assert (found.id, found.table, found.job_names) == (started, TABLE, ("copy", "words"))
    assert (found.window, found.kind, found.attempt) == (WINDOW, IterationKind.TAIL, 2)
    assert (found.run_id, found.session_id) == ("run-1", "session-of-run-1")
    assert (found.start_at, found.heartbeat_at, found.end_at) == (NOW, NOW, None)
    assert found.consumers == ()


def test_a_first_sync_starts_at_zero(log: JobLog) -> None:
    start(log, window=Window(TS.zero(), TS(0, NOW)))
    (found,) = log.iterations.open()
    assert found.window.start.is_zero
    assert str(found.window) == "(0, v0]"


def test_a_heartbeat_moves_only_its_own_iteration(log: JobLog) -> None:
    one, two = start(log, "one"), start(log, "two")
    log.iterations.heartbeat(one, LATER)
    assert {row.id: row.heartbeat_at for row in log.iterations.open()} == {one: LATER, two: NOW}


def test_a_heartbeat_after_the_end_changes_nothing(log: JobLog) -> None:
    started = start(log)
    log.iterations.finish(started, now=LATER)
    ended = log.iterations.list()
    log.iterations.heartbeat(started, LATER + timedelta(hours=1))
    assert log.iterations.list() == ended
    assert log.iterations.open() == []


def test_an_iteration_ends_with_what_each_consumer_did(log: JobLog) -> None:
    started = start(log)
    log.iterations.finish(
        started,
        now=LATER,
        kind=IterationKind.SNAPSHOT,
        rows_scanned=8,
        bytes_scanned=2**40,
        seconds=1.5,
        consumers=[GOOD, BAD],
    )
    assert log.iterations.open() == []
    (found,) = log.iterations.list()
    assert (found.kind, found.end_at) == (IterationKind.SNAPSHOT, LATER)
    assert (found.rows_scanned, found.bytes_scanned, found.seconds) == (8, 2**40, 1.5)
    assert found.consumers == (GOOD, BAD)


def test_the_error_of_each_consumer_is_kept_under_its_name(log: JobLog, log_url: str) -> None:
    log.iterations.finish(start(log), now=LATER, consumers=[GOOD, BAD], error="run was stopped")
    columns, *rows = dump(log_url)["mo_iscp_iterations"]
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    (whole,) = (row for row in named if row["iteration_id"] is None)
    assert json.loads(whole["error_json"]) == {
        "words": {"code": 21, "msg": BAD.error_msg},
        "*": {"code": 1, "msg": "run was stopped"},
    }
    assert (whole["rows_upserted"], whole["rows_deleted"], whole["rows_skipped"]) == (5, 2, 1)
    by_job = {row["job_id"]: row["error_json"] for row in named if row["iteration_id"]}
    assert by_job[1] is None
    assert json.loads(by_job[2]) == {"code": 21, "msg": BAD.error_msg}


def test_an_iteration_ends_once(log: JobLog) -> None:
    started = start(log)
    log.iterations.finish(started, now=LATER, rows_scanned=8, consumers=[GOOD])
    ended = log.iterations.list()
    log.iterations.finish(started, now=LATER + timedelta(hours=1), consumers=[GOOD, BAD])
    assert log.iterations.list() == ended


def test_of_eight_processes_that_end_an_iteration_one_does(
    log: JobLog, log_url: str, crew: Crew
) -> None:
    for _ in range(5):
        crew.all("finish", url=log_url, iteration_id=start(log))
    assert [len(ended.consumers) for ended in log.iterations.list()] == [1] * 5


def test_iterations_are_listed_newest_first_up_to_a_limit(log: JobLog) -> None:
    other = add_table(log, TableKey("acme", "shop", "orders"))
    ids = [start(log, "a"), start(log, "b", other), start(log, "c")]
    log.iterations.finish(ids[0], now=LATER, consumers=[GOOD, BAD])
    assert [row.id for row in log.iterations.list()] == ids[::-1]
    assert [row.id for row in log.iterations.list(limit=2)] == [ids[2], ids[1]]
    assert [row.id for row in log.iterations.list(table=TABLE)] == [ids[2], ids[0]]
    assert [row.id for row in log.iterations.list(table=other)] == [ids[1]]


def test_old_iterations_go_with_their_consumers_and_the_newest_of_each_table_stay(
    log: JobLog, log_url: str
) -> None:
    other = add_table(log, TableKey("acme", "shop", "orders"))
    ended = [start(log, f"run-{n}") for n in range(4)]
    lonely = start(log, "lonely", other)
    for n, started in enumerate([*ended, lonely]):
        log.iterations.finish(started, now=NOW + timedelta(days=n), consumers=[GOOD, BAD])
    unfinished = start(log, "unfinished")

    # The two newest of shop.orders are the unfinished one and the last that ended.
    gone = log.iterations.delete_ended_before(NOW + timedelta(days=2), keep_per_table=2)

    assert gone == 2
    assert {row.id for row in log.iterations.list()} == {*ended[2:], lonely, unfinished}
    _, *rows = dump(log_url)["mo_iscp_iterations"]
    assert len(rows) == 4 + 3 * 2
    assert all(len(row.consumers) == 2 for row in log.iterations.list() if row.end_at)


def test_an_open_iteration_is_never_deleted_for_its_age(log: JobLog) -> None:
    started = start(log)
    assert log.iterations.delete_ended_before(NOW + timedelta(days=999), keep_per_table=0) == 0
    assert [row.id for row in log.iterations.open()] == [started]

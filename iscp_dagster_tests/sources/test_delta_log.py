"""Reading single commits."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.errors import TableUnreadable
from iscp_dagster.sources.delta_log import LocalLog, one_line, parse_commit

MODIFIED = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
INFO = {"commitInfo": {"timestamp": 1_700_000_000_123, "operation": "WRITE"}}


def commit(*actions: dict, **dumps) -> bytes:
    return b"\n".join(json.dumps(action, **dumps).encode() for action in actions) + b"\n"


def add(size: int = 10, change: bool = True, **more: object) -> dict:
    return {"add": {"path": "a", "size": size, "dataChange": change, **more}}


def test_an_add_and_a_remove_change_data_and_count_their_bytes():
    remove = {"remove": {"path": "b", "size": 7, "dataChange": True}}
    read = parse_commit(3, commit(INFO, add(10), remove), MODIFIED)
    assert (read.commit.version, read.commit.data_change, read.commit.bytes) == (3, True, 17)
    assert read.delta_id is None


def test_change_data_counts_although_it_says_data_change_false():
    cdc = {"cdc": {"path": "c", "size": 5, "dataChange": False}}
    read = parse_commit(3, commit(INFO, cdc), MODIFIED)
    assert (read.commit.data_change, read.commit.bytes) == (True, 5)


@pytest.mark.parametrize(
    "actions",
    [
        (INFO, add(10, change=False), {"remove": {"path": "b", "size": 7, "dataChange": False}}),
        (INFO, {"metaData": {"id": "x", "configuration": {"dataChange": "true"}}}),
        (INFO, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}}),
        (INFO, {"txn": {"appId": "a", "version": 1}}),
        (INFO, {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}}),
        ({"txn": None, "add": {"path": "a", "size": 1, "dataChange": False}},),
    ],
    ids=["optimize", "metadata", "protocol", "txn", "domain", "spelled-out nulls"],
)
def test_what_leaves_the_rows_alone_is_no_change(actions: tuple[dict, ...]):
    read = parse_commit(3, commit(*actions), MODIFIED)
    assert (read.commit.data_change, read.commit.bytes) == (False, 0)


def test_new_metadata_tells_the_delta_id():
    assert parse_commit(0, commit({"metaData": {"id": "abc"}}), MODIFIED).delta_id == "abc"


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"inCommitTimestamp": 1_000, "timestamp": 2_000}, datetime(1970, 1, 1, 0, 0, 1, 0, UTC)),
        ({"timestamp": 2_000}, datetime(1970, 1, 1, 0, 0, 2, 0, UTC)),
        ({}, MODIFIED),
        ({"timestamp": "soon"}, MODIFIED),
        ({"timestamp": 10**30}, MODIFIED),
    ],
)
def test_the_time_is_the_commit_s_own_else_the_file_s(info: dict, expected: datetime):
    assert parse_commit(0, commit({"commitInfo": info}), MODIFIED).commit.time == expected


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\n \n",
        b"not json",
        b"[1]",
        b'{"add": 5}',
        commit(INFO, add())[:-3],
        commit(INFO)[:20],
        commit(INFO) + b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_broken_commit_is_named_and_not_guessed(payload: bytes):
    with pytest.raises(TableUnreadable, match="commit 8"):
        parse_commit(8, payload, MODIFIED)


NASTY = st.text(alphabet='"\\{}:,dataChngesiz 01true\n', max_size=40) | st.sampled_from(
    ['","dataChange":true,"size":999,"x":"', '{"add":{"size":1,"dataChange":true}}', "\\"]
)
FILE = st.fixed_dictionaries(
    {"path": NASTY, "dataChange": st.booleans()},
    optional={
        "size": st.integers(0, 10**12),
        "partitionValues": st.dictionaries(NASTY | st.just("size"), st.none() | NASTY, max_size=3),
        "stats": st.dictionaries(st.just("size"), st.integers()).map(json.dumps),
        "tags": st.dictionaries(st.just("dataChange"), NASTY, max_size=1),
    },
)
ACTION = st.tuples(st.sampled_from(["add", "remove", "cdc"]), FILE).map(lambda a: {a[0]: a[1]})


@given(actions=st.lists(ACTION, min_size=1, max_size=6), spaced=st.booleans())
def test_the_quick_reading_agrees_with_parsing_every_line(actions: list[dict], spaced: bool):
    counted = [
        body.get("size", 0)
        for action in actions
        for kind, body in action.items()
        if kind == "cdc" or body["dataChange"]
    ]
    payload = commit(*actions, separators=(" , ", " : ") if spaced else (",", ":"))
    read = parse_commit(1, payload, MODIFIED).commit
    assert (read.data_change, read.bytes) == (bool(counted), sum(counted))


def test_a_commit_of_fifty_thousand_files_is_read_in_a_moment():
    stats = json.dumps({"numRecords": 1, "minValues": {f"c{i}": i for i in range(20)}})
    line = commit(add(1, stats=stats, partitionValues={"day": "2026-01-01"}))
    payload = commit(INFO) + line * 50_000
    start = time.process_time()
    read = parse_commit(1, payload, MODIFIED)
    assert read.commit.bytes == 50_000
    assert time.process_time() - start < 2


def test_only_plain_commit_files_are_versions(tmp_path):
    log = tmp_path / "_delta_log"
    log.mkdir()
    for name in [
        f"{3:020d}.json",
        f"{4:020d}.json",
        f"{9:020d}.5b1d8b3e-0000-4000-8000-000000000000.json",
        f"{3:020d}.{7:020d}.compacted.json",
        f"{8:020d}.checkpoint.parquet",
        f"{8:020d}.checkpoint.{1:010d}.{2:010d}.parquet",
        f"{8:020d}.crc",
        f".{9:020d}.json.crc",
        "_last_checkpoint",
        "12.json",
    ]:
        (log / name).write_bytes(b"{}")
    assert LocalLog(tmp_path).versions(0) == [3, 4]
    assert LocalLog(tmp_path).versions(4) == [4]


def test_an_error_becomes_one_line_without_its_signature():
    error = OSError(
        "GET https://x/y?sig=SECRET&a=b failed\n\x1b[31m↳\x1b[0m refused\n\nDebug source:\nX"
    )
    assert one_line(error) == "GET https://x/y?… failed refused"

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from iscp_dagster.rules.hashing import shard_of, vnode_of
from iscp_dagster.rules.model import TableKey

TABLES = [TableKey("sys", "db", f"t{number}") for number in range(2000)]


def test_every_table_belongs_to_one_shard_and_shards_are_about_even():
    owners = Counter(shard_of(table, 4) for table in TABLES)
    assert sorted(owners) == [0, 1, 2, 3]
    assert max(owners.values()) < 1.2 * min(owners.values())


def test_a_new_shard_takes_its_share_and_moves_nothing_else():
    moved = [table for table in TABLES if shard_of(table, 4) != shard_of(table, 5)]
    assert all(shard_of(table, 5) == 4 for table in moved)
    assert 300 < len(moved) < 500


def test_one_shard_owns_everything():
    assert {shard_of(table, 1) for table in TABLES} == {0}


def test_accounts_do_not_share_placement_by_accident():
    one = [shard_of(TableKey("a", "b", f"t{n}"), 8) for n in range(50)]
    other = [shard_of(TableKey("c", "b", f"t{n}"), 8) for n in range(50)]
    assert one != other


def test_vnodes_are_about_even_for_consecutive_keys():
    buckets = Counter(vnode_of(str(key)) for key in range(64_000))
    assert len(buckets) == 64
    assert max(buckets.values()) < 1.3 * min(buckets.values())


@pytest.mark.parametrize(
    ("key", "bucket"), [("", 0), ("a", 3), ("123456789", 0x26), ("straße", 13), ("鍵", 56)]
)
def test_a_key_stays_in_its_vnode_for_ever(key, bucket):
    assert vnode_of(key) == bucket


def test_placement_does_not_depend_on_the_process():
    code = (
        "from iscp_dagster.rules.hashing import shard_of, vnode_of\n"
        "from iscp_dagster.rules.model import TableKey\n"
        "print(shard_of(TableKey('sys', 'db', 't'), 16), vnode_of('k'))"
    )
    here = f"{shard_of(TableKey('sys', 'db', 't'), 16)} {vnode_of('k')}"
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here

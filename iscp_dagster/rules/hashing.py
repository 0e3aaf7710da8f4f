"""Stable placement: which vnode a key belongs to, which runner shard a table.

A *vnode* is a hash bucket of the primary key, the unit of backfill progress. A *shard* is one of n
runner sensors. Both must come out the same in every process and on every machine, so Python's
salted `hash()` is never used.
"""

from __future__ import annotations

import hashlib
import zlib

from iscp_dagster.rules.model import TableKey

VNODES = 64


def vnode_of(canonical_key: str, vnodes: int = VNODES) -> int:
    """Return the bucket of a key: CRC-32 of its UTF-8 bytes, modulo.

    CRC-32 because every engine has it: in Spark SQL the same number is
    `crc32(encode(key, 'utf-8')) % vnodes`, without a Python function per row.
    """
    return zlib.crc32(canonical_key.encode()) % vnodes


def shard_of(table: TableKey, shards: int) -> int:
    """Return the runner shard that owns a table, by rendezvous hashing.

    Each shard draws a number for the table and the highest wins, so going from n to n + 1 shards
    moves only the tables that the new one wins.
    """
    if shards == 1:
        return 0
    return max(range(shards), key=lambda shard: _draw(f"{table}#{shard}"))


def _draw(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()

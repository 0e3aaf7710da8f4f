"""Telling two sets of rows apart without bringing them together.

A *fingerprint* is the number of rows and a checksum over a sample of them, which does not depend on
their order. The sample is chosen by the key, so that both sides choose the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp_dagster.spark.sql import column, columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ONE_IN = 16

# Sums of floating-point numbers depend on the order they were added in; maps have no order.
_NOT_COMPARED = ("float", "double", "map<", "variant")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Rows, sampled rows, and the checksum of the sample."""

    rows: int
    sampled: int
    checksum: int


def fingerprint(rows: DataFrame, key: Sequence[str]) -> Fingerprint:
    """Take the fingerprint of `rows`; columns that can't be compared exactly are left out."""
    from pyspark.sql import functions as fn

    types = dict(rows.dtypes)
    compared = [
        name for name in rows.columns if not any(kind in types[name] for kind in _NOT_COMPARED)
    ]
    chosen = fn.pmod(fn.xxhash64(*columns(key)), fn.lit(ONE_IN)) == 0
    digest = fn.xxhash64(*(column(name) for name in compared)).cast("decimal(38,0)")
    total, sampled, checksum = rows.agg(
        fn.count("*"),
        fn.coalesce(fn.sum(chosen.cast("int")), fn.lit(0)),
        fn.coalesce(fn.sum(fn.when(chosen, digest)), fn.lit(0)),
    ).first() or (0, 0, 0)
    return Fingerprint(int(total), int(sampled), int(checksum))

"""How the rows of a Delta index lie in files: sorted, and as many files as its readers want."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from iscp_dagster.spark.sql import columns
from iscp_dagster.stores.delta_columns import compute

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ROWS_PER_FILE = 100_000
FINE_FILES = 16
"""So many files has an index whose readers look for few values, once each has enough rows."""
ROWS_IN_FINE_FILE = 2_000


def laid_out(rows: DataFrame, order: Sequence[str], count: int, *, fine: bool) -> DataFrame:
    """Sort rows into files, so that a reader of a few values of `order` opens few of them."""
    by = columns(order)
    return rows.repartitionByRange(files_for(count, fine=fine), *by).sortWithinPartitions(*by)


def files_of(rows: pa.Table, order: Sequence[str], *, fine: bool) -> Iterator[pa.Table]:
    """Do the same to rows that are here already."""
    keys = [(name, "ascending") for name in order]
    ordered = rows.take(compute().sort_indices(rows, sort_keys=keys))
    files = files_for(rows.num_rows, fine=fine)
    ends = [rows.num_rows * number // files for number in range(files + 1)]
    return (ordered.slice(start, end - start) for start, end in pairwise(ends))


def files_for(rows: int, *, fine: bool) -> int:
    """How many files an index of so many rows is written in; fine ones where readers skip most."""
    least = min(FINE_FILES, rows // ROWS_IN_FINE_FILE) if fine else 1
    return max(1, least, rows // ROWS_PER_FILE)

"""A Lance index beside what a build from scratch would hold, row by row.

All keys are compared, and the whole content of a *sample* of rows, chosen by key. A row of the
table that belongs into the index and is not there is *refused* if it can't be indexed (a vector of
the wrong size, say): such rows are expected to be missing, and counted apart. Vectors that an
embedder makes may differ in their last digits from batch to batch; all else has to be the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from zlib import crc32

from iscp_dagster.consumers.base import Comparison
from iscp_dagster.consumers.lance_rows import VECTOR, Layout, Tally
from iscp_dagster.rules.model import TS
from iscp_dagster.stores.lance_index import CONTROL, KEY
from iscp_dagster.stores.lance_keys import canonical_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset
    from pyspark.sql import DataFrame

ONE_IN = 16
MOST_SAMPLED = 5_000
MOST_EXPLAINED = 10_000
"""Of so many missing rows it is found out whether they were refused; more are plainly missing."""
_NEAR = 1e-4


def compare_rows(rows: DataFrame, layout: Layout, dataset: LanceDataset, at: TS) -> Comparison:
    """Compare an index with the rows that belong into it.

    Args:
        rows: All rows of the table that belong, laid out for `layout`.
        layout: How they are stored; vectors that are there already are not to be taken over.
        dataset: The index, at the version whose watermark is `at`.
        at: The point of the table's history that `rows` are of.
    """
    listed = _keys(dataset)
    there = set(listed)
    wanted = rows.select(*(f"k{i}" for i in range(layout.keys))).toArrow().combine_chunks()
    keys = canonical_keys([wanted[name] for name in wanted.column_names]).to_pylist()
    one_in = max(1, min(ONE_IN, len(keys) // ONE_IN), len(keys) // MOST_SAMPLED)
    sample = {key for key in (*keys, *there) if crc32(key.encode()) % one_in == 0}
    missing = [key for key in keys if key not in there][:MOST_EXPLAINED]
    expected, refused = _converted(rows, layout, wanted, keys, sample.union(missing))
    return Comparison(
        watermark=at,
        rows_expected=len(keys) - len(refused),
        rows_found=len(listed),
        sampled=len(sample),
        same=_same(_only(expected, sample), _stored(dataset, sample), layout),
        rows_refused=len(refused),
    )


def _converted(
    rows: DataFrame, layout: Layout, wanted: pa.Table, keys: list[str], picked: set[str]
) -> tuple[pa.Table, list[str]]:
    """Bring some rows to the driver; return them as they should be stored, and those refused."""
    import pyarrow as pa
    from pyspark.sql import functions as fn

    tally = Tally()
    batches: list[pa.RecordBatch] = []
    some = wanted.filter(pa.array([key in picked for key in keys], pa.bool_()))
    if some.num_rows:
        names = some.column_names
        chosen = rows.sparkSession.createDataFrame(
            some.rename_columns([f"picked_{name}" for name in names])
        )
        same = fn.lit(True)
        for name in names:
            same &= fn.col(name).eqNullSafe(fn.col(f"picked_{name}"))
        found = rows.join(fn.broadcast(chosen), same, "leftsemi").toArrow()
        batches = [tally.count(layout.convert(one)) for one in found.to_batches()]
    return pa.Table.from_batches(batches, layout.schema), tally.refused


def _stored(dataset: LanceDataset, keys: Iterable[str]) -> pa.Table:
    import pyarrow as pa
    from pyarrow.compute import field

    return dataset.to_table(filter=field(KEY).isin(pa.array(keys, pa.string())))


def _only(rows: pa.Table, keys: set[str]) -> pa.Table:
    import pyarrow as pa

    return rows.filter(pa.array([key in keys for key in rows[KEY].to_pylist()], pa.bool_()))


def _same(expected: pa.Table, found: pa.Table, layout: Layout) -> bool:
    """Whether two sets of rows are the same, whatever their order."""
    if expected.num_rows != found.num_rows:
        return False
    expected, found = expected.sort_by(KEY), found.sort_by(KEY)
    for name in layout.schema.names:
        if name == CONTROL:
            continue
        made = name == VECTOR and getattr(layout, "embedder", None) is not None
        if made and not _near(expected[name], found[name]):
            return False
        if not made and expected[name].to_pylist() != found[name].to_pylist():
            return False
    return True


def _near(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    import numpy as np

    vectors = (array.combine_chunks().flatten().to_numpy() for array in (one, other))
    return bool(np.allclose(*vectors, rtol=0, atol=_NEAR))


def _keys(dataset: LanceDataset) -> list[str]:
    return dataset.to_table(columns=[KEY], filter=f"{CONTROL} IS NULL")[KEY].to_pylist()

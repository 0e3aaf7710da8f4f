"""Finding a few keys in the data files of a Delta index."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from iscp_dagster.stores.delta_columns import Column, cast, compute, read_columns
from iscp_dagster.stores.delta_files import LiveFile, NotKnown

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyarrow.parquet import ParquetFile

_KEY_TYPES = frozenset(
    "string boolean byte short integer long date timestamp timestamp_ntz".split()  # noqa: SIM905
)


class KeySet:
    """The keys to look for."""

    def __init__(self, keys: pa.Table, columns: Sequence[Column]) -> None:
        self._keys = keys
        self._columns = columns
        first = keys.column(0).drop_null()
        # Only such values compare in Python as the log's bounds do.
        ordered = columns[0].delta_type in ("string", "long", "integer", "short", "byte")
        self._sorted = sorted(set(first.to_pylist())) if ordered else None
        self._nulls = keys.column(0).null_count > 0

    @staticmethod
    def of(keys: pa.Table, columns: Sequence[Column]) -> KeySet:
        """Read keys; raises `NotKnown` where their types don't compare as plain equality does."""
        by_name = {column.name: column for column in columns}
        used = [by_name[name] for name in keys.column_names]
        for column in used:
            if column.delta_type not in _KEY_TYPES and not column.delta_type.startswith("decimal"):
                raise NotKnown(f"key of type {column.delta_type}")
        return KeySet(cast(keys, used), used)

    def may_be_in(self, file: LiveFile) -> bool:
        """Whether a file's bounds let a key be in it."""
        name = self._columns[0].physical
        low = file.stats.get("minValues", {}).get(name)
        high = file.stats.get("maxValues", {}).get(name)
        if self._sorted is None or self._nulls or low is None or high is None:
            return True
        at = bisect.bisect_left(self._sorted, low)
        # A long text's upper bound is cut; whatever begins like it may be there.
        return at < len(self._sorted) and (
            self._sorted[at] <= high
            or (isinstance(high, str) and self._sorted[at].startswith(high))
        )

    def positions(self, file: ParquetFile) -> NDArray[np.int64]:
        """Return the places of the rows in a file that have one of the keys."""
        import numpy as np

        pc = compute()
        found = read_columns(file, self._columns)
        pairs = zip(found.columns, self._keys.columns, strict=True)
        hits = [pc.is_in(column, value_set=keys.combine_chunks()) for column, keys in pairs]
        places = np.flatnonzero(reduce(pc.and_, hits).to_numpy())
        if len(hits) == 1:
            return places
        wanted, rows = set(_tuples(self._keys)), _tuples(found.take(places))
        return places[np.fromiter((row in wanted for row in rows), dtype=bool)]


def _tuples(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(_plain(column).to_pylist() for column in rows.columns), strict=True)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as numbers: Spark knows years that Python does not."""
    import pyarrow as pa

    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column

"""The key of a row as one text, the same from Spark's batches and from delta-rs'.

A *canonical key* is a JSON array with one text (or null) for each part of the primary key: `["eu",
"42"]`. It never equals the key of the control row, which is no array.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def canonical_keys(parts: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """Return one canonical key for each row.

    Args:
        parts: The columns of the primary key, in its order.

    Example:
        >>> canonical_keys([pa.array(["eu"]), pa.array([42])]).to_pylist()
        ['["eu","42"]']
    """
    import pyarrow as pa

    texts = [_texts(part) for part in parts]
    rows = zip(*texts, strict=True)
    keys = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    return pa.array(keys, pa.string())


def _texts(part: pa.Array | pa.ChunkedArray) -> list[str | None]:
    import pyarrow as pa
    from pyarrow import compute as pc

    kind = part.type
    if pa.types.is_dictionary(kind):
        part = part.cast(kind.value_type)
        kind = part.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return [None if value is None else value.hex() for value in part.to_pylist()]
    if pa.types.is_timestamp(kind):
        # An instant has one text, whatever zone and unit the reader labels it with.
        part = pc.cast(part, pa.timestamp("us", None if kind.tz is None else "UTC"))
    return pc.cast(part, pa.string()).to_pylist()

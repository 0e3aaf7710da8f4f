"""The key of a row as one text, the same from Spark's batches and from delta-rs'.

A *canonical key* is a JSON array with one text (or null) for each part of the primary key: `["eu",
"42"]`. It never equals the key of the control row, which is no array.
"""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring as _quoted
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

    # Text by text: an encoder for every row would take most of the time.
    written = [["null" if text is None else _quoted(text) for text in _texts(p)] for p in parts]
    keys = [f"[{','.join(row)}]" for row in zip(*written, strict=True)]
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

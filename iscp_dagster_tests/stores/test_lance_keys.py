"""One text for one key, whoever read it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from iscp_dagster.stores.lance_index import CONTROL_KEY
from iscp_dagster.stores.lance_keys import canonical_keys

NOON = datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "type_", "text"),
    [
        ("a", pa.string(), '["a"]'),
        ("a", pa.large_string(), '["a"]'),
        ("a", pa.string_view(), '["a"]'),
        ("a", pa.dictionary(pa.int32(), pa.string()), '["a"]'),
        ('q"\\ü', pa.string(), '["q\\"\\\\ü"]'),
        ("", pa.string(), '[""]'),
        (None, pa.string(), "[null]"),
        (1, pa.int64(), '["1"]'),
        (1, pa.int32(), '["1"]'),
        (True, pa.bool_(), '["true"]'),
        (Decimal("1.50"), pa.decimal128(9, 2), '["1.50"]'),
        (date(2026, 1, 1), pa.date32(), '["2026-01-01"]'),
        (NOON, pa.timestamp("us", "UTC"), '["2026-01-01 12:00:00.000005Z"]'),
        (NOON, pa.timestamp("us", "Asia/Tokyo"), '["2026-01-01 12:00:00.000005Z"]'),
        (NOON, pa.timestamp("ns", "UTC"), '["2026-01-01 12:00:00.000005Z"]'),
        (NOON.replace(tzinfo=None), pa.timestamp("us"), '["2026-01-01 12:00:00.000005"]'),
        (b"\x00a", pa.binary(), '["0061"]'),
        (b"\x00a", pa.large_binary(), '["0061"]'),
        (0.1, pa.float64(), '["0.1"]'),
    ],
)
def test_a_value_has_one_text_whatever_type_it_came_in(
    values: Any, type_: pa.DataType, text: str
) -> None:
    assert canonical_keys([pa.array([values], type_)]).to_pylist() == [text]


def test_the_parts_of_a_key_don_t_run_into_each_other() -> None:
    parts = [pa.array(["a,b", "a", None]), pa.array(["c", "b,c", "null"])]
    keys = canonical_keys(parts).to_pylist()
    assert len(set(keys)) == 3
    assert CONTROL_KEY not in keys


def test_chunked_columns_are_read_as_one() -> None:
    part = pa.chunked_array([["a"], ["b", "c"]])
    assert canonical_keys([part]).to_pylist() == ['["a"]', '["b"]', '["c"]']

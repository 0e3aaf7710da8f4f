"""What a table looks like."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp_dagster.errors import TableUnreadable, UnknownDeltaTable
from iscp_dagster.sources.facts import Column, estimate_rows, read_facts
from iscp_dagster_tests.sources.conftest import Source


def test_columns_have_spark_s_type_names(tmp_path: Path):
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("n", pa.int32()),
            pa.field("tiny", pa.int8()),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("vec", pa.list_(pa.float32())),
            pa.field("tags", pa.map_(pa.string(), pa.int16())),
            pa.field("who", pa.struct([("name", pa.string()), ("age", pa.int64())])),
        ]
    )
    write_deltalake(tmp_path / "t", pa.table({f.name: [] for f in schema}, schema=schema))
    assert read_facts(str(tmp_path / "t")).columns == (
        Column("id", "bigint", False),
        Column("n", "int", True),
        Column("tiny", "tinyint", True),
        Column("price", "decimal(10,2)", True),
        Column("at", "timestamp", True),
        Column("vec", "array<float>", True),
        Column("tags", "map<string,smallint>", True),
        Column("who", "struct<name:string,age:bigint>", True),
    )


def test_facts_tell_id_version_feed_and_partitions(source: Source):
    source.write(1, 2, partition_by=["body"])
    source.write(3)
    facts = read_facts(f"file://{source.path}")
    assert facts.delta_id == str(source.delta.metadata().id)
    assert facts.ts.version == 1
    assert str(facts.ts).startswith("20")
    assert facts.change_feed
    assert facts.partition_columns == ("body",)
    assert facts.column("BODY") == Column("body", "string", True)
    assert facts.column("none") is None


def test_a_table_without_the_feed_says_so(tmp_path: Path):
    write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    assert not read_facts(str(tmp_path / "t")).change_feed


def test_rows_are_estimated_from_statistics(source: Source, tmp_path: Path):
    source.write(1, 2, 3)
    source.write(4)
    source.delta.delete("id = 2")
    assert estimate_rows(str(source.path)) == 3
    write_deltalake(tmp_path / "empty", pa.table({"id": pa.array([], pa.int64())}))
    assert estimate_rows(str(tmp_path / "empty")) == 0


def test_rows_without_statistics_are_unknown(source: Source):
    source.write(1)
    file = source.commit_file(0)
    actions = [json.loads(line) for line in file.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    file.write_text("".join(json.dumps(action) + "\n" for action in actions))
    assert estimate_rows(str(source.path)) is None


def test_a_folder_without_a_log_is_no_delta_table(tmp_path: Path):
    with pytest.raises(UnknownDeltaTable, match="is not a Delta table; check the uri"):
        read_facts(str(tmp_path))
    with pytest.raises(UnknownDeltaTable):
        read_facts(str(tmp_path / "nowhere"))


def test_a_broken_table_is_unreadable_in_one_line(source: Source):
    source.write(1)
    source.commit_file(0).write_text("{broken")
    with pytest.raises(TableUnreadable) as raised:
        read_facts(str(source.path))
    assert "\n" not in str(raised.value)

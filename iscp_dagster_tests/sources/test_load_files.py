"""Tests of what a load makes of files, and of what it refuses."""

from __future__ import annotations

import base64
import csv
import gzip
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from iscp_dagster.settings import Settings
from iscp_dagster_tests.sources.shelf import FORMATS, Row, Shelf, doc, spark_test

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def shelf(tmp_path: Path, settings: Settings) -> Shelf:
    return Shelf(tmp_path, settings)


@spark_test
@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_quotes_newlines_and_unicode_come_through(shelf: Shelf, file_format: str) -> None:
    texts = [
        'say "hi"',
        "it's",
        "a\nb\r\nc",
        "ünï 漢字 🎉",
        "a,b;c\td",
        "\\n \\",
        "${env:HOME}",
        "--",
    ]
    shelf.create()
    rows = [doc(i, text) for i, text in enumerate(texts)]
    assert shelf.load(shelf.write(file_format, rows)).inserted == len(texts)
    assert list(shelf.bodies().values()) == texts


@spark_test
def test_csv_tells_null_from_an_empty_text(shelf: Shelf) -> None:
    shelf.create()
    shelf.load(shelf.file("a.csv", '\ufeffbody,id\r\n"",1\r\n,"2"\r\nx,3\r\n'))
    assert shelf.bodies() == {1: "", 2: None, 3: "x"}


@spark_test
def test_a_compressed_file_is_read(shelf: Shelf) -> None:
    shelf.create()
    shelf.load(shelf.file("a.csv.gz", gzip.compress(b"id,body\n1,x\n")))
    assert shelf.bodies() == {1: "x"}


@spark_test
def test_each_file_has_columns_and_an_order_of_columns_of_its_own(shelf: Shelf) -> None:
    shelf.create([doc(1, "old")])
    folder = shelf.folder / "dt=2026 01"
    folder.mkdir()
    short = folder / "short.csv"
    short.write_text("ID\n1\n2\n")
    turned = shelf.file("turned.csv", "body,id\nx,3\n")
    report = shelf.load(str(short), turned, on_duplicate="replace")
    assert shelf.bodies() == {1: None, 2: None, 3: "x"}
    assert (report.inserted, report.replaced) == (2, 1)


TYPED = pa.schema(
    [
        ("region", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("the odd. one", pa.int32()),
        ("day", pa.date32()),
        ("ok", pa.bool_()),
        ("ratio", pa.float32()),
        ("raw", pa.binary()),
        ("vector", pa.list_(pa.float32())),
    ]
)
TYPED_KEY = ["region", "price", "at", "the odd. one"]


def typed(price: str, micros: int, **other: Any) -> dict[str, Any]:
    return {
        "region": "it's",
        "price": Decimal(price),
        "at": datetime(2026, 1, 2, 3, 4, 5, micros, tzinfo=UTC),
        "the odd. one": 7,
        "day": date(2026, 1, 2),
        "ok": True,
        "ratio": 0.5,
        "raw": b"\x00\xff",
        **other,
    }


def plain(row: Row) -> dict[str, Any]:
    """A row the way text files write it."""
    texts = {name: str(value) for name, value in row.items()}
    return texts | {"raw": base64.b64encode(row["raw"]).decode(), "at": row["at"].isoformat()}


def typed_file(shelf: Shelf, file_format: str, rows: Sequence[dict[str, Any]]) -> str:
    path = shelf.folder / f"typed.{file_format}"
    match file_format:
        case "parquet":
            # Other types than the table's: wider numbers, a naive timestamp, doubles.
            schema = (
                TYPED.set(1, pa.field("price", pa.decimal128(20, 4)))
                .set(2, pa.field("at", pa.timestamp("us")))
                .set(3, pa.field(TYPED_KEY[3], pa.int64()))
                .set(6, pa.field("ratio", pa.float64()))
                .set(8, pa.field("vector", pa.list_(pa.float64())))
            )
            naive = [{**row, "at": row["at"].replace(tzinfo=None)} for row in rows]
            pq.write_table(pa.Table.from_pylist(naive, schema=schema), path)
        case "json":
            nested = [plain(row) | {"vector": [0.25, 1]} for row in rows]
            path.write_text("".join(json.dumps(row) + "\n" for row in nested))
        case _:
            with path.open("w", newline="") as opened:
                writer = csv.DictWriter(opened, list(rows[0]))
                writer.writeheader()
                writer.writerows(map(plain, rows))
    return str(path)


@spark_test
@pytest.mark.parametrize("file_format", FORMATS)
def test_composite_decimal_and_timestamp_keys_match(shelf: Shelf, file_format: str) -> None:
    known = typed("10.10", 123456, vector=[1.0])
    shelf.create([known], TYPED, TYPED_KEY)
    vector = {} if file_format == "csv" else {"vector": [0.25, 1.0]}
    batch = [typed("10.10", 123456, **vector), typed("10.1", 123457, **vector)]
    file = typed_file(shelf, file_format, batch)
    report = shelf.load(file, on_duplicate="replace")
    assert (report.inserted, report.replaced) == (1, 1)
    expected = [{**row, "vector": vector.get("vector")} for row in batch]
    assert sorted(shelf.rows(), key=lambda row: row["at"]) == expected


@spark_test
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("id,body\n1,a\nx,b\n", "'x' in column 'id' does not fit bigint"),
        ("id,body\n1,a\n,b\n", "column 'id' is NULL, it is of the key"),
        ("id,body\n1,a\n2\n", "line '2' does not have the header's fields"),
        ("id,body\n1,a\n2,b,c\n", "line '2,b,c' does not have the header's fields"),
        ("id,body,extra\n1,a,b\n", "column 'extra' that sys/shop/docs has not"),
        ("body\na\n", "no column 'id', which is of the key"),
        ("", "has no header"),
    ],
)
def test_a_csv_file_that_does_not_fit_is_refused(shelf: Shelf, content: str, sentence: str) -> None:
    shelf.create()
    good = shelf.write("csv", [doc(7, "good")], "good")
    message = shelf.refused(good, shelf.file("bad.csv", content))
    assert sentence in message
    assert "bad.csv" in message


@spark_test
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"id": 1}\n{"id": {"a": 1}}\n', "in column 'id' does not fit bigint"),
        ('{"id": 1}\n{"id": 2\n', "line '{\"id\": 2' is no JSON object"),
        ('[\n{"id": 1},\n{"id": 2}\n]\n', "is no JSON object"),
        ("{}\n", "no line that is a JSON object with columns"),
        ('{"id": 1, "extra": 1}\n', "column 'extra' that sys/shop/docs has not"),
    ],
)
def test_a_json_file_that_does_not_fit_is_refused(
    shelf: Shelf, content: str, sentence: str
) -> None:
    shelf.create()
    message = shelf.refused(shelf.file("bad.json", content))
    assert sentence in message
    assert "bad.json" in message


@spark_test
@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (pa.array([1.5]), "'1.5' in column 'id' does not fit bigint"),
        (pa.array([None], pa.int64()), "column 'id' is NULL"),
        (pa.array([[1]]), "is array<bigint>, which can't become bigint"),
    ],
)
def test_a_parquet_file_that_does_not_fit_is_refused(
    shelf: Shelf, values: pa.Array, sentence: str
) -> None:
    shelf.create()
    path = shelf.folder / "bad.parquet"
    pq.write_table(pa.table({"id": values}), path)
    assert sentence in shelf.refused(str(path))


@spark_test
def test_a_known_composite_key_is_named_in_full(shelf: Shelf) -> None:
    shelf.create([typed("10.10", 123456)], TYPED, TYPED_KEY)
    message = shelf.refused(typed_file(shelf, "csv", [typed("10.1", 123456)]))
    key = '{"region":"it\'s","price":10.10,"at":"2026-01-02T03:04:05.123456Z","the odd. one":7}'
    assert f"has key {key} already" in message


@spark_test
def test_a_value_that_would_be_cut_is_refused(shelf: Shelf) -> None:
    schema = pa.schema([("price", pa.decimal128(6, 2)), ("day", pa.date32())])
    shelf.create((), schema, ["price"])
    cut = shelf.file("cut.csv", "price\n1.239\n")
    assert "'1.239' in column 'price' does not fit decimal(6,2)" in shelf.refused(cut)
    late = shelf.file("late.csv", "price,day\n1,2026-01-01 12:00:00\n")
    assert "in column 'day' does not fit date" in shelf.refused(late)
    shelf.load(shelf.file("whole.csv", "price,day\n1.500,2026-01-01 00:00:00\n"))
    assert shelf.rows() == [{"price": Decimal("1.50"), "day": date(2026, 1, 1)}]


@spark_test
def test_a_parquet_file_that_is_cut_off_is_refused(shelf: Shelf) -> None:
    shelf.create()
    whole = Path(shelf.write("parquet", [doc(1, "a")])).read_bytes()
    assert "can't be read" in shelf.refused(shelf.file("cut.parquet", whole[:-8]))


@spark_test
def test_columns_that_the_table_fills_by_itself_may_be_missing(
    shelf: Shelf, spark: SparkSession
) -> None:
    from delta.tables import DeltaTable as SparkDelta

    (
        SparkDelta.create(spark)
        .location(shelf.uri)
        .addColumn("id", "bigint")
        .addColumn("kind", "string")
        .addColumn("body", "string")
        .addColumn("double", "bigint", generatedAlwaysAs="id * 2")
        .property("delta.feature.allowColumnDefaults", "supported")
        .property("delta.enableChangeDataFeed", "true")
        .execute()
    )
    spark.sql(f"alter table delta.`{shelf.uri}` alter column kind set default 'new'")
    shelf.record()
    shelf.load(shelf.file("kinds.csv", "id,kind\n1,old\n2,\n"))
    shelf.load(shelf.write("csv", [doc(1, "b"), doc(3, "c")]), on_duplicate="replace")
    assert shelf.rows() == [
        {"id": 1, "kind": "old", "body": "b", "double": 2},
        {"id": 2, "kind": None, "body": None, "double": 4},
        {"id": 3, "kind": "new", "body": "c", "double": 6},
    ]


@spark_test
def test_what_the_table_itself_refuses_is_a_usage_error(shelf: Shelf) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("body", pa.string(), nullable=False)])
    shelf.create((), schema)
    DeltaTable(shelf.uri).alter.add_constraint({"positive": "id > 0"})
    assert "positive" in shelf.refused(shelf.write("csv", [doc(-1, "a")]))
    assert "'body'" in shelf.refused(shelf.file("a.csv", "id\n1\n"))
    assert "'body' is NULL, the table allows none" in shelf.refused(
        shelf.file("b.csv", "id,body\n1,\n")
    )


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("missing.csv", "there is no file"),
        ("*.csv", "is a pattern"),
        ("folder", "is a folder"),
        ("folder.csv", "is a folder"),
        ("_hidden.csv", "passes over names like"),
        ("notes.txt", "does not tell its format"),
        ("fake.parquet", "is no Parquet file"),
        ("ftp://host/a.csv", "ftp:// is not a store"),
    ],
)
def test_what_is_no_file_to_load_is_refused_without_spark(
    shelf: Shelf, file: str, sentence: str
) -> None:
    shelf.create()
    for name in ("folder", "folder.csv"):
        (shelf.folder / name).mkdir()
    for name in ("_hidden.csv", "notes.txt", "fake.parquet"):
        shelf.file(name, "id,body\n1,a\n")
    path = file if "://" in file else str(shelf.folder / file)
    assert sentence in shelf.refused(path)


def test_formats_do_not_mix_and_a_load_has_files(shelf: Shelf) -> None:
    shelf.create()
    files = [shelf.write(file_format, [doc(1, "a")]) for file_format in ("csv", "json")]
    assert "csv and json in one load" in shelf.refused(*files)
    assert "none given" in shelf.refused()
    assert "'xml' is not known" in shelf.refused(*files, file_format="xml")

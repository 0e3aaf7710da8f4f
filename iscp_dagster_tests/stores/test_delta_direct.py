"""Small windows without Spark: Spark reads what was written, and what can't be written is its."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta.tables import DeltaTable as SparksTable
from deltalake import DeltaTable

from iscp_dagster.errors import IndexContended
from iscp_dagster.rules.model import TS, Window
from iscp_dagster.sources.storage import open_store
from iscp_dagster.spark.sql import own_session
from iscp_dagster.stores import delta_direct, delta_layout, delta_ways
from iscp_dagster.stores.delta_direct import read_rows
from iscp_dagster.stores.delta_draft import Identity
from iscp_dagster.stores.delta_files import DeltaFiles
from iscp_dagster.stores.delta_index import DeltaIndex, Standing
from iscp_dagster.stores.delta_ways import CHECKPOINT_EVERY, GONE, Batch, Way
from iscp_dagster_tests.consumers.shop import ts
from iscp_dagster_tests.stores.bucket import bucket, endpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["bucket", "endpoint"]

pytestmark = pytest.mark.spark

BUILD = {"type": "test", "source": {}}
Rows = Mapping[tuple[Any, ...], str | None]


class Shelf:
    """An index of one or two key columns and a value, and what it should hold."""

    def __init__(
        self, session: SparkSession, path: Path, keys: str, seed: Rows, value: str = "a"
    ) -> None:
        self.session = session
        self.value = value
        self.schema = f"{keys}, `{value}` string"
        self.key = tuple(session.createDataFrame([], keys).columns)
        self.index = DeltaIndex(str(path), 3)
        self.expected = dict(seed)
        self.end = 1
        empty = self.frame({}).drop(GONE)
        self.index.create(session, empty, BUILD, self.key)
        self.index.replace(self.frame(seed).drop(GONE), Window(TS.zero(), ts(1)))

    def frame(self, rows: Rows, gone: bool = False) -> DataFrame:
        made = [(*key, value, gone) for key, value in rows.items()]
        return self.session.createDataFrame(made, f"{self.schema}, {GONE} boolean")

    def standing(self) -> Standing:
        found = self.index.standing()
        assert found is not None
        return found

    def batch(self, put: Rows, gone: set[tuple[Any, ...]]) -> Batch:
        rows = self.frame(put).union(self.frame(dict.fromkeys(gone), gone=True))
        changed = len(put) + len(gone)
        return Batch(rows, self.key, self.key, changed, len(put), fetched=rows.toArrow())

    def apply(self, put: Rows, gone: set[tuple[Any, ...]] | None = None) -> Way:
        batch, window = self.batch(put, gone or set()), Window(ts(self.end), ts(self.end + 1))
        way = self.index.apply(self.session, batch, window, self.standing())
        self.end += 1
        self.expected |= put
        for key in gone or set():
            self.expected.pop(key, None)
        return way

    def content(self) -> dict[tuple[Any, ...], str | None]:
        rows = self.session.read.format("delta").load(self.index.uri).collect()
        found = {tuple(row[name] for name in self.key): row[self.value] for row in rows}
        assert len(found) == len(rows)
        return found

    def is_right(self) -> bool:
        standing = self.standing()
        assert (standing.watermark, standing.rows) == (ts(self.end), len(self.expected))
        return self.content() == self.expected

    def actions(self, kind: str) -> list[dict[str, Any]]:
        """The newest commit's."""
        log = Path(self.index.uri) / "_delta_log" / f"{self.standing().version:020d}.json"
        found = [json.loads(line) for line in log.read_text().splitlines()]
        return [one[kind] for one in found if kind in one]


@pytest.fixture(autouse=True)
def _files_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files kept and their rows marked, however small they are."""
    monkeypatch.setattr(delta_ways, "SHARE_TO_REWRITE", -1)


@pytest.fixture(params=["kept", "rewritten"])
def files_are(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have files kept, or all of them written anew."""
    if request.param == "rewritten":
        monkeypatch.setattr(delta_ways, "SHARE_TO_REWRITE", 10**9)
    return request.param


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    return own_session(spark)


def moment(day: int) -> datetime:
    return datetime(1969, 12, day, 23, 59, 59, 999_999, tzinfo=UTC)


KEYS: dict[str, Callable[[int], Any]] = {
    "string": lambda n: ["", "it's", 'say "hi"', "ünï \\ 𐐷", "x" * 100][n],
    "bigint": lambda n: [-(2**63), -1, 0, 7, 2**63 - 1][n],
    "tinyint": lambda n: n - 2,
    "smallint": lambda n: n * 1000,
    "int": lambda n: -n,
    "boolean": lambda n: n % 2 == 0,
    "date": lambda n: date(1000 + n * 290, 10, 10),
    "timestamp": lambda n: moment(n + 1).replace(tzinfo=None),
    "timestamp_ntz": lambda n: moment(n + 1).replace(tzinfo=None),
    "decimal(38,10)": lambda n: Decimal(f"999999999999999999999999999{n}.0000000001"),
    "decimal(5,2)": lambda n: Decimal(n) / 4,
}


@pytest.mark.parametrize("type_", ["string", "timestamp"])
def test_rows_are_found_by_key_before_and_after(
    session: SparkSession, tmp_path: Path, type_: str
) -> None:
    from pyspark.sql import functions as fn

    zero, one, two, three, four = map(KEYS[type_], range(5))
    shelf = Shelf(session, tmp_path / "i", f"k {type_}", {(zero,): "0", (one,): "1", (two,): "2"})
    assert shelf.apply({(one,): "again", (three,): "3"}, {(zero,), (four,)}) is Way.DIRECT
    assert shelf.apply({(three,): None, (zero,): "back"}, {(one,)}) is Way.DIRECT
    assert shelf.is_right()
    for key in (zero, one):
        same = fn.col("k") == fn.lit(key).cast(type_)
        found = session.read.format("delta").load(shelf.index.uri).where(same)
        expected = [shelf.expected[key,]] if (key,) in shelf.expected else []
        assert [row["a"] for row in found.collect()] == expected


@pytest.mark.usefixtures("files_are")
def test_keys_of_every_type_match_as_a_whole(session: SparkSession, tmp_path: Path) -> None:
    columns = ", ".join(f"k{i} {type_}" for i, type_ in enumerate(KEYS))
    zero, one, two, three, four = (tuple(key(n) for key in KEYS.values()) for n in range(5))
    shelf = Shelf(session, tmp_path / "i", columns, {zero: "0", one: "1", two: "2"})
    assert shelf.apply({one: "again", three: "3"}, {zero, four}) is Way.DIRECT
    mixed = (*zero[:-1], one[-1])  # each value is one of a key's, the whole is none
    assert shelf.apply({three: None, mixed: "mixed"}, {two}) is Way.DIRECT
    assert shelf.apply({zero: "back"}, {one}) is Way.DIRECT
    assert shelf.is_right()


@pytest.mark.usefixtures("files_are")
def test_nulls_in_keys_match_each_other(session: SparkSession, tmp_path: Path) -> None:
    seed = {(a, b): f"{a}{b}" for a in ("x", "y", None) for b in (1, 2, None)}
    shelf = Shelf(session, tmp_path / "i", "a string, b int", seed, value="v")
    shelf.apply({("x", 2): "new", (None, 1): "half", (None, None): "none"}, {("y", None)})
    shelf.apply({("y", None): "back"}, {(None, None), ("x", 1), ("z", 1)})
    assert shelf.is_right()


def test_it_goes_on_where_others_compacted_or_deleted(
    session: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf(session, tmp_path / "i", "k bigint", {(n,): "seed" for n in range(20)})
    shelf.apply({(1,): "one"}, {(2,)})
    DeltaTable(shelf.index.uri).optimize.compact()
    assert shelf.apply({(1,): "uno", (3,): "three"}, {(4,)}) is Way.DIRECT
    assert shelf.is_right()
    SparksTable.forPath(session, shelf.index.uri).delete("k = 19")
    assert shelf.apply({(3,): "tre"}, {(5,)}) is Way.DIRECT
    del shelf.expected[19,]
    assert shelf.content() == shelf.expected


@pytest.mark.usefixtures("files_are")
def test_columns_whose_names_no_file_may_have_are_mapped(
    session: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf(session, tmp_path / "i", "`the key` bigint", {(1,): "1", (2,): "2"}, "a, b;c")
    assert "delta.columnMapping.mode" in DeltaTable(shelf.index.uri).metadata().configuration
    assert shelf.apply({(2,): "two", (3,): "three"}, {(1,)}) is Way.DIRECT
    assert shelf.is_right()


def test_windows_go_on_over_checkpoints_which_gather_small_files(
    session: SparkSession, tmp_path: Path
) -> None:
    """Rows come, change and go in every commit, so that each file's vector grows again."""
    shelf = Shelf(session, tmp_path / "i", "k bigint", {(n,): "seed" for n in range(50)})
    log = Path(shelf.index.uri) / "_delta_log"
    (log / "._last_checkpoint.crc").write_bytes(b"of a checkpoint before")
    for n in range(2 * CHECKPOINT_EVERY + 3):
        put = {(n,): f"{n}", (n + 7,): "ahead", (100 + n,): "new"}
        assert shelf.apply(put, {(n + 30,)}) is Way.DIRECT
        version = shelf.standing().version
        files = DeltaFiles(shelf.index.uri).live(version)
        assert len(files) <= CHECKPOINT_EVERY
        if version % CHECKPOINT_EVERY == 0:
            assert len(files) == 1
            assert (log / f"{version:020d}.checkpoint.parquet").exists()
            assert not (log / "._last_checkpoint.crc").exists()
    assert shelf.is_right()
    # Spark finds the same without the commits that the checkpoint stands for.
    for commit in range(2 * CHECKPOINT_EVERY):
        (log / f"{commit:020d}.json").unlink()
    copy = tmp_path / "copy"
    shutil.copytree(shelf.index.uri, copy)
    shelf.index = DeltaIndex(str(copy), 3)
    assert shelf.is_right()
    assert shelf.apply({(1,): "on"}) is Way.DIRECT
    assert shelf.is_right()


def test_where_much_changes_the_index_is_written_anew_in_sorted_files(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_ways, "SHARE_TO_REWRITE", 4)
    monkeypatch.setattr(delta_layout, "ROWS_PER_FILE", 10)
    shelf = Shelf(session, tmp_path / "i", "k bigint", {(n,): "seed" for n in range(30)})
    shelf.apply({(7,): "seven"}, {(8,)})
    assert shelf.actions("add")[0]["deletionVector"]["cardinality"] == 2
    changed = {(n,): "new" for n in range(25, 45)}
    assert shelf.apply(changed, {(0,), (1,)}) is Way.DIRECT
    assert shelf.is_right()
    bounds = [json.loads(one["stats"]) for one in shelf.actions("add")]
    spans = sorted((one["minValues"]["k"], one["maxValues"]["k"]) for one in bounds)
    assert sum(one["numRecords"] for one in bounds) == len(shelf.expected)
    assert len(spans) == len(shelf.expected) // 10
    assert all(high < low for (_, high), (low, _) in pairwise(spans))
    assert not any("deletionVector" in one for one in shelf.actions("add"))


def test_a_file_whose_last_row_goes_is_removed(session: SparkSession, tmp_path: Path) -> None:
    shelf = Shelf(session, tmp_path / "i", "k bigint", {(1,): "1", (2,): "2"})
    shelf.apply({(3,): "3"}, {(1,)})
    shelf.apply({}, {(2,), (3,)})
    assert shelf.is_right()
    assert shelf.actions("add") == []
    assert len(shelf.actions("remove")) == 2
    shelf.apply({(1,): "back"})
    assert shelf.is_right()


def test_the_log_tells_bounds_that_let_files_be_skipped(
    session: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf(session, tmp_path / "i", "k string, n int", {("m", 5): "seed"})
    shelf.apply({("b", 3): "", ("c", None): "", (None, 9): ""})
    (added,) = shelf.actions("add")
    told = json.loads(added["stats"])
    assert told["numRecords"] == 3
    assert (told["minValues"], told["maxValues"]) == ({"k": "b", "n": 3}, {"k": "c", "n": 9})
    assert told["nullCount"] == {"k": 1, "n": 1}
    shelf.apply({("x" * 100, 1): "long"})
    (added,) = shelf.actions("add")
    assert json.loads(added["stats"])["minValues"] == {"n": 1}
    assert shelf.is_right()


def test_only_files_that_may_hold_a_key_are_opened(session: SparkSession, tmp_path: Path) -> None:
    shelf = Shelf(session, tmp_path / "i", "k bigint", {(1,): "1"})
    shelf.apply({(10,): "10"})
    shelf.apply({(20,): "20"})
    version = shelf.standing().version
    for file in DeltaFiles(shelf.index.uri).live(version):
        if file.stats["minValues"]["k"] != 10:
            (Path(shelf.index.uri) / file.path).write_bytes(b"nobody may read this")
    assert shelf.apply({(10,): "ten"}) is Way.DIRECT


def test_who_comes_second_loses_and_leaves_no_files(session: SparkSession, tmp_path: Path) -> None:
    shelf = Shelf(session, tmp_path / "i", "k bigint", {(1,): "1", (2,): "2"})
    old = shelf.standing()
    shelf.apply({(1,): "first"})
    there = sorted(path.name for path in Path(shelf.index.uri).iterdir())
    with pytest.raises(IndexContended):
        shelf.index.apply(session, shelf.batch({(2,): "late"}, {(1,)}), Window(ts(1), ts(9)), old)
    assert sorted(path.name for path in Path(shelf.index.uri).iterdir()) == there
    assert shelf.is_right()


@pytest.mark.parametrize(
    "properties",
    ["'delta.enableChangeDataFeed' = 'true'", "'delta.enableRowTracking' = 'true'"],
)
def test_a_feature_that_is_not_known_here_is_left_to_spark(
    session: SparkSession, tmp_path: Path, properties: str
) -> None:
    shelf = Shelf(session, tmp_path / "i", "k bigint", {(1,): "1", (2,): "2"})
    session.sql(f"alter table delta.`{shelf.index.uri}` set tblproperties ({properties})")
    assert shelf.apply({(1,): "one", (3,): "3"}, {(2,)}) is not Way.DIRECT
    assert shelf.is_right()
    assert read_rows(shelf.index.uri, DeltaTable(shelf.index.uri)) is None


def test_where_too_many_rows_would_be_looked_through_spark_does_it(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_direct, "MOST_SOUGHT", 1)
    shelf = Shelf(session, tmp_path / "i", "k bigint", {(1,): "1", (9,): "9"})
    assert shelf.apply({(1,): "one", (9,): "nine"}) is not Way.DIRECT
    assert shelf.is_right()


def test_years_that_python_has_not_are_no_hindrance(session: SparkSession, tmp_path: Path) -> None:
    far = session.sql(
        "select * from values (date'+12000-01-01', 1, 'far', false), "
        "(date'0000-01-01', 2, 'old', false) as t(d, n, a, _iscp_gone)"
    )
    index = DeltaIndex(str(tmp_path / "far"), 3)
    index.create(session, far.drop(GONE), BUILD, ["d", "n"])
    index.replace(far.drop(GONE).where("n = 1"), Window(TS.zero(), ts(1)))
    standing = index.standing()
    assert standing is not None
    batch = Batch(far, ("d", "n"), ("d", "n"), 2, 2, fetched=far.toArrow())
    assert index.apply(session, batch, Window(ts(1), ts(2)), standing) is Way.DIRECT
    found = session.read.format("delta").load(index.uri).selectExpr("string(d)", "n", "a")
    assert sorted(map(tuple, found.collect())) == sorted(
        map(tuple, far.selectExpr("string(d)", "n", "a").collect())
    )


def test_statistics_in_another_form_stay_in_the_checkpoint(
    session: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf(session, tmp_path / "i", "k date", {(date(2026, 1, n),): "" for n in (1, 2, 3)})
    properties = "'delta.checkpoint.writeStatsAsStruct' = 'true'"
    session.sql(f"alter table delta.`{shelf.index.uri}` set tblproperties ({properties})")
    DeltaTable(shelf.index.uri).create_checkpoint()
    assert shelf.apply({(date(2026, 1, 2),): "two"}) is Way.DIRECT
    assert "stats_parsed" not in shelf.actions("add")[0]
    assert shelf.is_right()


def test_a_column_that_was_added_to_the_index_is_left_to_spark(
    session: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf(session, tmp_path / "i", "k bigint", {(1,): "1", (2,): "2"})
    session.sql(f"alter table delta.`{shelf.index.uri}` add column more int")
    there = sorted(path.name for path in Path(shelf.index.uri).iterdir())
    table = DeltaTable(shelf.index.uri)
    rows = shelf.batch({(1,): "one"}, set()).fetched
    assert rows is not None
    change = delta_direct.Change(rows.drop_columns(GONE), rows.select(["k"]), ("k",), fine=False)
    identity = Identity("iscp:3", 9, "")
    assert not delta_direct.apply_change(shelf.index.uri, table, change, lambda _: identity)
    assert sorted(path.name for path in Path(shelf.index.uri).iterdir()) == there


def test_a_commit_that_was_sent_twice_is_ours_and_another_is_not(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    files = DeltaFiles(str(tmp_path))
    assert files.commit(1, [{"commitInfo": {"txnId": "mine"}}])
    assert files.commit(1, [{"commitInfo": {"txnId": "mine"}}])
    assert not files.commit(1, [{"commitInfo": {"txnId": "another"}}])


def test_a_damaged_vector_or_checkpoint_is_not_guessed_at(
    session: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf(session, tmp_path / "i", "k bigint", {(n,): f"{n}" for n in range(9)})
    shelf.apply({(1,): "one"})
    assert read_rows(shelf.index.uri, DeltaTable(shelf.index.uri)) is not None
    (vector,) = Path(shelf.index.uri).glob("deletion_vector_*.bin")
    whole = vector.read_bytes()
    vector.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert read_rows(shelf.index.uri, DeltaTable(shelf.index.uri)) is None
    vector.write_bytes(whole)
    hint = Path(shelf.index.uri) / "_delta_log" / "_last_checkpoint"
    hint.write_text('{"version": 1, "parts": 2}')
    assert read_rows(shelf.index.uri, DeltaTable(shelf.index.uri)) is None


def test_an_index_in_an_object_store_is_patched_the_same_way(
    session: SparkSession, tmp_path: Path, bucket: str
) -> None:
    shelf = Shelf(session, tmp_path / "i", "k bigint", {(n,): f"{n}" for n in range(9)})
    shelf.apply({(1,): "one"})
    store = open_store(bucket)
    for path in Path(shelf.index.uri).rglob("*"):
        if path.is_file() and path.suffix != ".crc":
            store.put(f"i/{path.relative_to(shelf.index.uri)}", path)
    remote = DeltaIndex(f"{bucket}/i", 3)
    standing = remote.standing()
    assert standing is not None
    batch, window = shelf.batch({(1,): "uno", (10,): "ten"}, {(2,)}), Window(ts(2), ts(3))
    assert remote.apply(session, batch, window, standing) is Way.DIRECT
    moved = remote.standing()
    assert moved is not None
    assert (moved.watermark, moved.rows) == (ts(3), 9)
    found = {row["k"]: row["a"] for row in remote.rows_at(session, moved).collect()}
    expected = shelf.expected | {(1,): "uno", (10,): "ten"}
    assert found == {key: value for (key,), value in expected.items() if key != 2}
    with pytest.raises(IndexContended):
        remote.apply(session, shelf.batch({(5,): "late"}, set()), Window(ts(2), ts(4)), standing)

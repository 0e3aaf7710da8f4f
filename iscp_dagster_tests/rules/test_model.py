from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import hypothesis.strategies as st
import pytest
from hypothesis import given

from iscp_dagster.errors import UsageError
from iscp_dagster.rules.model import TS, JobKey, TableKey, Window, check_name

TIME = datetime(2026, 11, 18, 5, 49, 0, 123_000, tzinfo=UTC)

points = st.builds(
    TS,
    st.integers(0, 10**12),
    st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC)).map(
        lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)
    ),
)


class TestTS:
    def test_it_is_written_as_commit_time_and_version(self):
        assert str(TS(42, TIME)) == "2026-11-18T05:49:00.123Z-42"

    def test_before_the_first_commit_is_written_zero(self):
        assert str(TS.zero()) == "0"
        assert TS.parse("0").is_zero
        assert not TS(0, TIME).is_zero

    def test_a_time_of_another_zone_is_written_in_utc(self):
        tokyo = TIME.astimezone(timezone(timedelta(hours=9)))
        assert str(TS(42, tokyo)) == str(TS(42, TIME))

    @given(points)
    def test_what_is_written_reads_back(self, point):
        assert str(TS.parse(str(point))) == str(point)
        assert TS.parse(str(point)).time == point.time

    def test_points_compare_by_version_and_never_by_time(self):
        later = TS(1, TIME + timedelta(days=1))
        assert TS.zero() < TS(0, TIME) < later < TS(2, TIME)
        assert later == TS(1, TIME)
        assert hash(later) == hash(TS(1, TIME))
        assert later <= TS(1, TIME) <= later
        assert max(TS(3, TIME), TS(7, TIME), TS(5, TIME)).version == 7

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "1",
            "-1",
            "00",
            "2026-11-18T05:49:00.123Z",
            "2026-11-18T05:49:00.123Z-",
            "2026-11-18T05:49:00.123Z-042",
            "2026-11-18T05:49:00.123Z--1",
            "2026-11-18 05:49:00.123Z-42",
            "2026-13-18T05:49:00.123Z-42",
            "2026-11-18T05:49:00.123Z-٤٢",
            "2026-11-18T05:49:00.123Z-42\n",
        ],
    )
    def test_what_is_no_point_in_history_is_refused_by_name(self, text):
        with pytest.raises(UsageError, match="timestamp: ") as caught:
            TS.parse(text)
        assert repr(text) in str(caught.value)


class TestWindow:
    def test_its_partition_key_reads_back(self):
        window = Window(TS(5, TIME), TS(8, TIME + timedelta(seconds=3)))
        assert window.partition_key == "2026-11-18T05:49:00.123Z-5_2026-11-18T05:49:03.123Z-8"
        assert Window.parse(window.partition_key) == window
        assert Window.parse(f"0_{TS(8, TIME)}").start.is_zero

    def test_a_partition_key_has_nothing_that_dagster_refuses(self):
        assert "..." not in Window(TS.zero(), TS(8, TIME)).partition_key

    def test_it_holds_the_versions_after_its_start_up_to_its_end(self):
        assert Window(TS(5, TIME), TS(8, TIME)).versions == 3
        assert Window(TS.zero(), TS(0, TIME)).versions == 1

    def test_it_is_shown_by_versions(self):
        assert str(Window(TS(5, TIME), TS(8, TIME))) == "(v5, v8]"
        assert str(Window(TS.zero(), TS(8, TIME))) == "(0, v8]"

    def test_what_is_no_window_is_refused(self):
        with pytest.raises(UsageError, match="is not a window"):
            Window.parse("0")
        with pytest.raises(UsageError, match="ends before it starts"):
            Window.parse(f"{TS(8, TIME)}_{TS(5, TIME)}")
        with pytest.raises(UsageError, match="timestamp"):
            Window.parse(f"0_{TS(8, TIME)}_0")


class TestKeys:
    def test_a_table_is_read_from_db_dot_table(self):
        table = TableKey.parse("db.docs", "acme")
        assert table == TableKey("acme", "db", "docs")
        assert table.asset_path == ("acme", "db", "docs")
        assert str(table) == "acme/db/docs"

    def test_the_default_account_is_sys(self):
        assert TableKey.parse("db.docs").account == "sys"

    def test_a_job_knows_its_table(self):
        key = TableKey.parse("db.docs").job("text")
        assert key == JobKey("sys", "db", "docs", "text")
        assert key.table_key == TableKey("sys", "db", "docs")
        assert key.asset_path == ("sys", "db", "docs", "text")
        assert str(key) == "sys/db/docs/text"

    def test_keys_sort_by_account_first(self):
        keys = [TableKey("b", "a", "a"), TableKey("a", "z", "z"), TableKey("a", "z", "a")]
        assert sorted(keys) == [keys[2], keys[1], keys[0]]

    @pytest.mark.parametrize("text", ["docs", "db.a.b", ".docs", "db.", "db/x.docs", "..", "db. d"])
    def test_what_is_no_table_is_refused(self, text):
        with pytest.raises(UsageError):
            TableKey.parse(text)

    @pytest.mark.parametrize(
        "name", ["", "a/b", "..", "a.b", "it's", 'a"b', "a\n", "a b", "-a", "ä", "a" * 129, "a\x00"]
    )
    def test_a_name_that_could_be_read_as_something_else_is_refused(self, name):
        with pytest.raises(UsageError, match=r"^job: "):
            TableKey("sys", "db", "docs").job(name)

    @pytest.mark.parametrize("name", ["a", "_x", "9", "a-b_C9", "a" * 128])
    def test_letters_digits_underscore_and_dash_make_a_name(self, name):
        assert check_name("job", name) == name

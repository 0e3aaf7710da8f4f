from __future__ import annotations

import subprocess
import sys

import pytest

from iscp_dagster.errors import UsageError
from iscp_dagster.rules.filters import MAX_LENGTH, parse_filter, render_spark

COLUMNS = ("a", "b", "Section", "the `odd. one", "at")


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("a = 1", "`a` = 1"),
        ("SECTION = 'net'", "`Section` = 'net'"),
        ("a == 1 and not b <> 2 or a is null", "`a` = 1 AND NOT `b` <> 2 OR `a` IS NULL"),
        ("a is not null", "NOT `a` IS NULL"),
        ("a in (1, 2) and b not in ('x')", "`a` IN (1, 2) AND NOT `b` IN ('x')"),
        ("a not like '%x' or a ilike 'y'", "`a` NOT LIKE '%x' OR `a` ILIKE 'y'"),
        ("a between 1 and 2 * (b + 3) % 4", "`a` BETWEEN 1 AND 2 * (`b` + 3) % 4"),
        ("at >= date '2026-01-01'", "`at` >= CAST('2026-01-01' AS DATE)"),
        ("year(at) = 2026 and day(at) = 1", "YEAR(`at`) = 2026 AND DAY(`at`) = 1"),
        ("lower(trim(a)) = substring(b, 1, 2)", "LOWER(TRIM(`a`)) = SUBSTRING(`b`, 1, 2)"),
        ("coalesce(a, abs(-b), round(a, 2)) > 0", "COALESCE(`a`, ABS(-`b`), ROUND(`a`, 2)) > 0"),
        ("`the ``odd. one` = 'it''s'", "`the ``odd. one` = 'it\\'s'"),
        ("a <=> b", "`a` IS NOT DISTINCT FROM `b`"),
        ("a = 1 -- a comment", "`a` = 1"),
    ],
)
def test_a_filter_is_written_anew_with_quoted_columns(text: str, rendered: str) -> None:
    found = parse_filter(text, COLUMNS)
    assert render_spark(found) == rendered
    assert parse_filter(found.text, COLUMNS) == found


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("reflect('java.lang.Runtime', 'exit') = 1", "reflect"),
        ("java_method('a', 'b') = 1", "java_method"),
        ("try_reflect('a', 'b') = 1", "try_reflect"),
        ("a = (select 1)", "subquery"),
        ("a in (select b from t)", "in"),
        ("exists (select 1)", "exists"),
        ("rand() > 0.5", "rand"),
        ("current_timestamp() > at", "current_timestamp"),
        ("a rlike '(x+)+'", "regexp_like"),
        ("cast(a as int) = 1", "cast"),
        ("input_file_name() = 'x'", "input_file_name"),
        ("a = :p", "placeholder"),
        ("a[0] = 1", "bracket"),
        ("t.a = 1", "t.a"),
        ("nothing = 1", "nothing"),
        ("a = 1; drop table x", "not one expression"),
        ("a = ", "can't be read"),
        ('a = "x"', "can't be read"),
        ("", "not one expression"),
        ("a + 1", "neither true nor false"),
        ("length(a, b) = 1", "length"),
        ("(" * 900 + "a" + ")" * 900, "can't be read"),
        ("a = " + "1" * MAX_LENGTH, "longer"),
    ],
)
def test_everything_else_is_refused_in_one_line_that_names_where(text: str, named: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_filter(text, COLUMNS)
    assert refused.value.message.startswith("where: ")
    assert named in refused.value.message
    assert "\n" not in str(refused.value)


def test_a_filter_tells_the_columns_it_reads_as_the_table_spells_them() -> None:
    assert parse_filter("section = 'x' and A > b", COLUMNS).columns == ("Section", "a", "b")


def test_a_filter_over_a_struct_reads_its_fields() -> None:
    found = parse_filter("a = 1 and `the ``odd. one` is null", COLUMNS)
    assert render_spark(found, "after") == "`after`.`a` = 1 AND `after`.`the ``odd. one` IS NULL"


def test_the_parser_is_not_imported_before_a_filter_is_parsed() -> None:
    code = "import sys, iscp_dagster.rules.filters; sys.exit('sqlglot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

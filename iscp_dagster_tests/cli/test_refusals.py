"""Tests of what is refused: one line that names the field, exit code 2, nothing written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from iscp_dagster_tests.cli.conftest import Iscp
from iscp_dagster_tests.shop import Shop

Refused = Callable[..., str]

LOOKUP = ["--type", "lookup", "--option", "by=section"]
PERIODIC = ["--type", "mirror", "--trigger", "periodic", "--interval"]


@pytest.fixture(autouse=True)
def _items(shop: Shop) -> None:
    shop.add_table()


BAD_DURATIONS = ["5x", "soon", "0s", "-1s", "1.5h", "10", "5 m 3 s", "1e3s", "٣s", "1w", "", "PT5M"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ([], "type:"),
        (["--type", "nosuch"], "type:"),
        (["--type", "iscp_dagster.consumers.mirror:Mirror"], "type:"),
        (["--type", "../mirror"], "type:"),
        (["--type", "mirror", "--trigger", "whenever"], "trigger:"),
        (["--type", "mirror", "--trigger", "os:system"], "trigger:"),
        (["--type", "mirror", "--columns", "id,colour"], "columns:"),
        (["--type", "mirror", "--columns", "id,id"], "columns:"),
        (["--type", "mirror", "--columns", ""], "columns:"),
        (["--type", "lookup"], "by:"),
        (["--type", "lookup", "--option", "by=colour"], "by:"),
        (["--type", "lookup", "--option", "by="], "by:"),
        ([*LOOKUP, "--option", "colour=red"], "colour"),
        ([*LOOKUP, "--option", "where"], "option:"),
        ([*LOOKUP, "--option", "=x"], "option:"),
        ([*LOOKUP, "--option", "where=1; drop table items"], "where:"),
        ([*LOOKUP, "--option", "where=colour = 'red'"], "where:"),
        (["--type", "aggregate"], "group_by:"),
        (["--type", "aggregate", "--option", "group_by=colour"], "group_by:"),
        (
            [
                "--type",
                "aggregate",
                "--option",
                "group_by=section",
                "--option",
                "measures=sum:name",
            ],
            "measures:",
        ),
        (["--type", "mirror", "--trigger", "periodic"], "interval:"),
        (["--type", "mirror", "--interval", "30s"], "interval:"),
        (["--type", "mirror", "--trigger", "greedy", "--interval", "30s"], "interval:"),
        *[([*PERIODIC, text], "interval:") for text in BAD_DURATIONS],
        (["--type", "mirror", "--timeout", "soon"], "timeout:"),
        (["--type", "mirror", "--lag-target", "0s"], "lag_target:"),
        (["--type", "mirror", "--priority", "101"], "priority:"),
        (["--type", "mirror", "--priority", "-101"], "priority:"),
        (["--type", "mirror", "--priority", "high"], "--priority"),
        (["--type", "mirror", "--priority", "1.5"], "--priority"),
        (["--type", "mirror", "--max-window-versions", "0"], "max_window_versions:"),
        (["--type", "mirror", "--max-window-bytes", "-1"], "max_window_bytes:"),
        (["--type", "mirror", "--owner", "bob"], "owners"),
        (["--type", "mirror", "--owner", "team:"], "owners"),
        (["--type", "mirror", "--colour", "red"], "--colour"),
        (["--type", "mirror", "--spec", "nowhere.json"], "--spec"),
    ],
)
def test_a_wrong_field_is_refused_by_name_and_nothing_is_written(
    refused: Refused, arguments: list[str], field: str
) -> None:
    assert field in refused("register", "shop.items", "copy", *arguments)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("{", "spec:"),
        ("", "spec:"),
        ("[]", "spec:"),
        ("null", "spec:"),
        ({}, "type:"),
        ({"type": 7}, "type:"),
        ({"type": "mirror", "colour": "red"}, "colour:"),
        ({"type": "mirror", "priority": "high"}, "priority:"),
        ({"type": "mirror", "priority": 1000}, "priority:"),
        ({"type": "mirror", "columns": "id"}, "columns:"),
        ({"type": "mirror", "columns": [1]}, "columns"),
        ({"type": "mirror", "options": ["by"]}, "options:"),
        ({"type": "mirror", "options": {"where": 1}}, "options.where:"),
        ({"type": "mirror", "trigger": "greedy"}, "trigger:"),
        ({"type": "mirror", "trigger": {"kind": "periodic", "interval": 30}}, "interval:"),
        ({"type": "mirror", "trigger": {"kind": "greedy", "every": "30s"}}, "trigger.every:"),
        ({"type": "mirror", "trigger": {"share": "perhaps"}}, "trigger.share:"),
        ({"type": "mirror", "timeout": 5}, "timeout:"),
        ({"type": "mirror", "owners": ["bob"]}, "owners"),
    ],
)
def test_a_wrong_spec_file_is_refused_by_field(
    shop: Shop, refused: Refused, spec: object, named: str
) -> None:
    assert named in refused("register", "shop.items", "copy", "--spec", write_spec(shop, spec))


def test_options_over_a_file_whose_parts_are_no_objects_are_refused(
    shop: Shop, refused: Refused
) -> None:
    file = write_spec(shop, {"type": "mirror", "options": ["by"], "trigger": "greedy"})
    arguments = ["register", "shop.items", "copy", "--spec", file]
    assert "options:" in refused(*arguments, "--option", "where=price > 1")
    assert "trigger:" in refused(*arguments, "--interval", "5s")


def test_a_spec_file_that_is_no_text_is_refused(shop: Shop, refused: Refused) -> None:
    path = shop.folder / "spec.json"
    path.write_bytes(b"\xff\xfe\x00\x01")
    assert "spec:" in refused("register", "shop.items", "copy", "--spec", str(path))


BAD_JOB_NAMES = [
    "",
    ".",
    "..",
    "a/b",
    "../../etc",
    "a.b",
    "it's",
    'a"b',
    "a`b",
    "a b",
    "a\nb",
    "a\tb",
    "a\x00b",
    "a\x7fb",
    "a\u202eb",
    "é",
    "a;b",
    "a,b",
    "a%2fb",
    "x" * 129,
]


@pytest.mark.parametrize("name", BAD_JOB_NAMES)
def test_a_job_name_that_is_none_is_refused_everywhere(refused: Refused, name: str) -> None:
    assert "job:" in refused("register", "shop.items", name, "--type", "mirror")
    for command in ("unregister", "alter", "status", "pause", "resume", "repair"):
        assert "job:" in refused(command, "shop.items", name)


@pytest.mark.parametrize("account", ["", "..", "a/b", "it's", "a\nb"])
def test_an_account_that_is_no_name_is_refused_everywhere(refused: Refused, account: str) -> None:
    register = ["register", "shop.items", "copy", "--type", "mirror", "--account", account]
    assert "account:" in refused(*register)
    for command in ("unregister", "alter", "status", "pause", "resume", "repair"):
        assert "account:" in refused(command, "shop.items", "copy", "--account", account)
    for command in ("jobs", "iterations"):
        assert "account:" in refused(command, "--account", account)


def test_an_unknown_table_or_job_is_named_with_what_to_do(refused: Refused) -> None:
    line = refused("register", "shop.nosuch", "copy", "--type", "mirror")
    assert "sys/shop/nosuch" in line
    assert "iscp table" in line
    for command in ("alter", "status", "pause", "resume", "repair"):
        line = refused(command, "shop.items", "nosuch")
        assert "sys/shop/items/nosuch" in line
        assert "iscp jobs" in line


def test_a_table_that_is_gone_is_refused_by_its_uri(shop: Shop, refused: Refused) -> None:
    path = shop.add_table("shop.gone")
    shutil.rmtree(path)
    assert str(path) in refused("register", "shop.gone", "copy", "--type", "mirror")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--priority", "101"], "priority:"),
        (["--interval", "soon"], "interval:"),
        (["--interval", "30s"], "interval:"),
        (["--trigger", "periodic"], "interval:"),
        (["--trigger", "whenever"], "trigger:"),
        (["--timeout", "0m"], "timeout:"),
        (["--owner", "bob"], "owners"),
        (["--columns", "id"], "--columns"),
        (["--type", "lookup"], "--type"),
    ],
)
def test_a_wrong_change_is_refused_by_field(
    iscp: Iscp, refused: Refused, arguments: list[str], field: str
) -> None:
    iscp("register", "shop.items", "copy", "--type", "mirror")
    assert field in refused("alter", "shop.items", "copy", *arguments)


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"type": "mirror"}, "type:"),
        ({"columns": ["id"]}, "columns:"),
        ({"options": {"by": "name"}}, "options:"),
        ({"colour": "red"}, "colour:"),
    ],
)
def test_what_an_index_is_built_from_stays_as_it_was(
    shop: Shop, iscp: Iscp, refused: Refused, patch: dict[str, Any], field: str
) -> None:
    iscp("register", "shop.items", "copy", *LOOKUP)
    assert field in refused("alter", "shop.items", "copy", "--spec", write_spec(shop, patch))


def write_spec(shop: Shop, spec: object) -> str:
    path = shop.folder / "spec.json"
    path.write_text(spec if isinstance(spec, str) else json.dumps(spec), encoding="utf-8")
    return str(path)

"""Tests of how fast help comes, and of what every command says about itself."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from iscp_dagster.cli.main import cli
from iscp_dagster_tests.cli.conftest import Iscp
from iscp_dagster_tests.shop import Shop

ISCP = Path(sys.executable).with_name("iscp")
HEAVY = {"dagster", "pyspark", "deltalake", "sqlalchemy", "pyarrow", "pandas", "pydantic", "rich"}
NEVER_FOR_LISTS = {"dagster", "pyspark", "deltalake", "pyarrow", "pandas"}
_LOADED = """
import json, sys
from iscp_dagster.cli.main import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as ended:
        assert ended.code == 0, (arguments, ended.code)
print("loaded:", *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def loaded_by(*commands: list[str]) -> set[str]:
    """The packages that a process has loaded once it has run these commands."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.rpartition("loaded:")[2].split())


def paths(group: click.Group, *prefix: str) -> list[list[str]]:
    """Every command there is, as the words that call it."""
    found: list[list[str]] = [[*prefix]]
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += paths(command, *prefix, name)
        else:
            found.append([*prefix, name])
    return found


def test_help_answers_in_under_half_a_second() -> None:
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        done = subprocess.run([ISCP, "--help"], capture_output=True, text=True, check=True)
        best = min(best, time.perf_counter() - begin)
        assert "register" in done.stdout
        if best < 0.5:
            break
    assert best < 0.5


def test_no_help_loads_a_heavy_package() -> None:
    loaded = loaded_by(*([*path, "--help"] for path in paths(cli)))
    assert "click" in loaded
    assert loaded & HEAVY == set()


def test_lists_load_neither_spark_nor_dagster_nor_delta(shop: Shop) -> None:
    shop.add_table()
    shop.register("copy", {"type": "mirror"})
    loaded = loaded_by(["jobs", "--json"], ["jobs"], ["table", "list"], ["iterations", "--json"])
    assert "sqlalchemy" in loaded
    assert loaded & NEVER_FOR_LISTS == set()


@pytest.mark.parametrize("path", paths(cli), ids=" ".join)
def test_every_command_and_option_says_what_it_is_for(iscp: Iscp, path: list[str]) -> None:
    done = iscp(*path, "--help")
    assert done.code == 0
    assert done.err == ""
    command: click.Command = cli
    for word in path:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    assert command.help
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.help, parameter.name


def test_a_group_alone_shows_its_help(iscp: Iscp) -> None:
    for arguments in ([], ["table"]):
        done = iscp(*arguments)
        assert "Usage: iscp" in done.out + done.err
        assert "Commands:" in done.out + done.err


def test_the_version_is_told(iscp: Iscp) -> None:
    from iscp_dagster import __version__

    done = iscp("--version")
    assert done.code == 0
    assert __version__ in done.out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["registre"], "registre"),
        (["jobs", "--colour"], "--colour"),
        (["register", "shop.items"], "JOB"),
        (["table", "add", "shop.items", "--pk", "id"], "--uri"),
        (["table", "add", "shop.items", "--uri", "x"], "--pk"),
        (["iterations", "--limit", "0"], "--limit"),
        (["table", "load", "shop.items", "x.csv", "--on-duplicate", "shrug"], "--on-duplicate"),
        (["jobs", "--state", "happy"], "state"),
        (["jobs", "--account", "a/b"], "account"),
        (["table", "list", "--account", "../etc"], "account"),
        (["iterations", "--account", "it's"], "account"),
    ],
)
def test_wrong_usage_is_one_line_that_names_what_is_wrong(
    refused: Callable[..., str], arguments: list[str], named: str
) -> None:
    assert named in refused(*arguments)

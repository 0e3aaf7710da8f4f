"""Every command of the README, run in the order in which it stands there.

Those for `iscp` run here, in one home, in this process. The others start processes that other
tests start as well: `ELSEWHERE` names them, and a command that is in neither place fails.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from iscp_dagster.cli.main import main
from iscp_dagster.orchestration.instance import open_instance
from iscp_dagster.settings import Settings
from iscp_dagster_tests.docs.pages import DOCS, README, ROOT, blocks_of
from iscp_dagster_tests.joblog.databases import fresh_postgresql

TESTS = ROOT / "iscp_dagster_tests"
ELSEWHERE = {
    "make demo": "cli/test_demo.py::test_the_demo_runs_twice_and_keeps_its_word",
    "make test": "docs/test_readme.py::test_make_runs_what_the_readme_says",
    "iscp dev": "orchestration/test_dev_day.py::test_a_day_with_iscp_dev",
    "dagster dev": "browser/test_ui.py::test_plain_dagster_dev_sees_what_the_demo_left",
}
"""Commands, each with the test that runs it."""
MAKE = {"demo": ".venv/bin/iscp demo", "test": ".venv/bin/python -m pytest"}
ITEMS = {
    "id": [1, 2, 3, 4],
    "section": ["garden", "garden", "kitchen", "kitchen"],
    "title": ["Paper lantern", "Rake", "Kettle", "Tea towel"],
    "body": ["A lantern of rice paper.", "For leaves.", "Boils.", "With a printed lantern."],
}


def commands_of(page: Path) -> list[list[str]]:
    """The commands of a page's shell blocks, as words; without the path to the virtualenv."""
    lines = [
        line
        for block in blocks_of(page)
        if block.language == "sh"
        for line in block.text.splitlines()
    ]
    split = [shlex.split(line, comments=True) for line in lines]
    return [[words[0].removeprefix(".venv/bin/"), *words[1:]] for words in split if words]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run `iscp` in this process; returns what it printed."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert ended.value.code == 0, (arguments, err)
    return out


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_commands_of_the_readme_do_what_it_says(
    home: Settings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(home.home))
    write_deltalake(tmp_path / "data" / "items", pa.table(ITEMS))
    said: dict[str, str] = {}
    for words in commands_of(README):
        command = " ".join(words)
        if command in ELSEWHERE:
            continue
        assert words[0] == "iscp", f"no test runs {command!r}"
        said[" ".join(words[1:3])] = said[command] = run(capsys, *words[1:])
    found = said["iscp search shop.items words paper lantern"]
    assert "Paper lantern" in found
    assert "Rake" not in found
    assert "up to date" in found
    assert "2 hits" in said["iscp search shop.items by_section section=garden --fresh"]
    for job in ("words", "by_section"):
        assert re.search(rf"\b{job}\b.*\bcompleted\b", said["iscp jobs"])
    assert "unregistered" in said["iscp unregister shop.items by_section"]
    _says(run(capsys, "status", "shop.items", "words"), "periodic", "30s", "completed")


def _says(text: str, *words: str) -> None:
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("command", ELSEWHERE)
def test_commands_that_run_elsewhere_do_run_there(command: str) -> None:
    file, _, test = ELSEWHERE[command].partition("::")
    assert f"def {test}(" in (TESTS / file).read_text(encoding="utf-8")
    assert command in [" ".join(words) for words in commands_of(README)]


@pytest.mark.parametrize("target", MAKE)
def test_make_runs_what_the_readme_says(target: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--dry-run", target],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert MAKE[target] in done.stdout


@pytest.mark.parametrize("page", sorted(DOCS.glob("write-*.md")), ids=lambda page: page.name)
def test_the_commands_of_the_how_to_pages_are_taken(
    page: Path,
    home: Settings,
    tmp_path: Path,
    installed: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_deltalake(
        tmp_path / "items", pa.table(ITEMS), configuration={"delta.enableChangeDataFeed": "true"}
    )
    run(capsys, "table", "add", "shop.items", "--uri", str(tmp_path / "items"), "--pk", "id")
    for words in commands_of(page):
        match words:
            case ["pip", "install", path]:
                installed(Path(path).name)
            case ["iscp", "sync"]:
                # The example's own test syncs.
                continue
            case ["iscp", *rest]:
                assert "shop.items" in run(capsys, *rest)
            case _:
                pytest.fail(f"no test runs {' '.join(words)!r}")


@pytest.mark.postgres
def test_dagster_s_storage_moves_to_postgresql_as_the_readme_says(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = os.environ.get("ISCP_TEST_POSTGRES_URL")
    if not server:
        pytest.skip("ISCP_TEST_POSTGRES_URL is not set")
    (block,) = [block for block in blocks_of(README) if block.language == "yaml"]
    ours = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump({**ours, **yaml.safe_load(block.text)}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(home.home))
    with fresh_postgresql(server) as url:
        assert "postgresql+psycopg2://" in README.read_text(encoding="utf-8")
        url = url.replace("postgresql://", "postgresql+psycopg2://")
        monkeypatch.setenv("DAGSTER_PG_URL", url)
        with open_instance(home) as instance:
            instance.add_dynamic_partitions("iscp/sys/shop/items", ["0_1"])
            assert "Postgres" in type(instance.event_log_storage).__name__
        with open_instance(home) as instance:
            assert instance.get_dynamic_partitions("iscp/sys/shop/items") == ["0_1"]
        assert not (home.home / "history").exists()

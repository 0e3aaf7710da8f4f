"""Tests that the pages are true of the code: links, inclusions, names and what is generated."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import click
import pytest

from iscp_dagster.cli.main import cli
from iscp_dagster_tests.docs.pages import DOCS, README, ROOT, pages, prose_of

_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_MENTION = re.compile(r"(?:\.venv/bin/)?iscp (?P<words>[a-z][a-z ]*)")


def load_generator() -> ModuleType:
    """`docs/generate.py`, which belongs to no package."""
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors_of(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def test_what_comes_from_the_code_is_up_to_date() -> None:
    stale = [
        page.name
        for page, text in load_generator().pages().items()
        if not page.exists() or page.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run `make docs`"


def test_the_reference_knows_every_command_setting_and_error_code() -> None:
    from iscp_dagster import errors
    from iscp_dagster_tests.test_errors import NAMED
    from iscp_dagster_tests.test_settings import GIVEN

    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    for words in (["register"], ["table", "add"], ["search"], ["dev"]):
        assert f"### `iscp {' '.join(words)}`" in text
    assert [name for name in GIVEN if f"| `{name}` |" not in text] == []
    assert [e for e in NAMED if f"| {e.code} | `{e.__name__}` |" not in text] == []
    assert errors.UnknownJob.cure in text


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    broken = []
    for found in _LINK.finditer(prose_of(page)):
        target, _, anchor = found["target"].partition("#")
        if target.startswith(("http://", "https://")):
            continue
        file = (page.parent / target).resolve() if target else page
        there = file.is_file() and file.is_relative_to(ROOT)
        if not there or (anchor and anchor not in anchors_of(file)):
            broken.append(found["target"])
    assert broken == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_commands_that_are_mentioned_are_there(page: Path) -> None:
    unknown = []
    for code in _CODE.findall(prose_of(page)):
        found = _MENTION.match(code)
        command: click.Command | None = cli
        for word in (found["words"].split() if found else ())[:2]:
            if isinstance(command, click.Group):
                command = command.commands.get(word)
        if command is None:
            unknown.append(code)
    assert unknown == []


def test_extras_that_the_readme_names_can_be_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"\(?extra `([a-z]+)`", README.read_text(encoding="utf-8"))
    assert named
    assert set(named) <= project["optional-dependencies"].keys()


def test_pictures_are_there_and_used() -> None:
    used = {
        (page.parent / found["target"]).resolve()
        for page in pages()
        for found in _LINK.finditer(prose_of(page))
        if found[0].startswith("!")
    }
    assert used == set((DOCS / "images").iterdir())

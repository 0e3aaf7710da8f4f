"""The README and the pages of docs/, as tests read them.

A *block* is what stands between two fences; its *language* is the word behind the first one.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
EXAMPLES = DOCS / "examples"

_BLOCK = re.compile(r"^```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str


def pages() -> list[Path]:
    """The README and everything in docs/ that is written for readers."""
    return [README, *sorted(DOCS.rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["language"], match["text"]) for match in found]


def prose_of(page: Path) -> str:
    """A page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def install_example(name: str, site: Path, patch: pytest.MonkeyPatch) -> None:
    """Do what `pip install docs/examples/NAME` would do, without building a wheel."""
    project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = "\n".join(
        f"[{group}]\n" + "\n".join(f"{point} = {target}" for point, target in entries.items())
        for group, entries in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(points)
    patch.syspath_prepend(site)
    patch.syspath_prepend(EXAMPLES / name)

"""The homes of the runner's tests, and the examples of the docs as installed packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from iscp_dagster_tests.docs.pages import install_example
from iscp_dagster_tests.orchestration.conftest import home, house

__all__ = ["home", "house", "installed"]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes an example of the docs an installed package, as its pyproject.toml says."""
    return lambda name: install_example(name, tmp_path / "site", monkeypatch)

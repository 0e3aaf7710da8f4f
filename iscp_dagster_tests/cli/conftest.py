"""A shop whose `iscp` runs in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from iscp_dagster.cli.main import main
from iscp_dagster_tests.shop import Shop

_SETTINGS = ("ISCP_LOG_URL", "ISCP_WAREHOUSE", "ISCP_RUNNER_SHARDS", "SPARK_REMOTE", "DAGSTER_HOME")


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def words(self) -> list[str]:
        return self.out.split()


Iscp = Callable[..., Done]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A home without a log yet; the working folder is its parent."""
    for name in _SETTINGS:
        monkeypatch.delenv(name, raising=False)
    shop = Shop(tmp_path)
    monkeypatch.setenv("ISCP_HOME", str(shop.home))
    monkeypatch.chdir(tmp_path)
    return shop


@pytest.fixture
def iscp(shop: Shop, capsys: pytest.CaptureFixture[str]) -> Iscp:
    """Runs a command, as the console script does."""

    def run(*arguments: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Done(code, out, err)

    return run


@pytest.fixture
def refused(shop: Shop, iscp: Iscp) -> Callable[..., str]:
    """Runs a command that has to be refused: one line, exit code 2, nothing written."""

    def run(*arguments: str) -> str:
        before = shop.contents()
        done = iscp(*arguments)
        assert done.code == 2, done
        assert_one_line(done)
        assert shop.contents() == before
        return done.err.strip()

    return run


def assert_one_line(done: Done) -> None:
    """Nothing but one readable line, on stderr."""
    assert done.out == ""
    assert done.err.startswith("iscp: ")
    assert done.err.endswith("\n")
    assert done.err.removesuffix("\n").isprintable(), done.err
    assert "Traceback" not in done.err

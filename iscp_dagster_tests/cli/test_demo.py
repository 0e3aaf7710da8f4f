"""The demo, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark


def _demo(home: Path) -> dict:
    done = subprocess.run(
        [Path(sys.executable).parent / "iscp", "demo", "--json"],
        env={**os.environ, "ISCP_HOME": str(home)},
        cwd=home.parent,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_demo_runs_twice_and_every_index_equals_a_build_from_scratch(tmp_path):
    for _ in range(2):
        report = _demo(tmp_path / "home")
        assert report["checks"] == {"copy": True, "by_module": True, "per_module": True}
        assert report["rows"] > 2000
        assert report["changed"] > 100
        assert report["scans"] == 1
        assert {job["version"] for job in report["jobs"]} == {3}

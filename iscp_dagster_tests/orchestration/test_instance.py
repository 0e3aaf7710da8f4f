"""Tests that `iscp` and plain `dagster` see one instance, with the root's dagster.yaml in force.

Each view is a real process: an asset, materialized by `dagster asset materialize`, writes down the
instance it runs in; `iscp` opens its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import DagsterInstance

from iscp_dagster.errors import UsageError
from iscp_dagster.orchestration.instance import open_instance, prepare_home
from iscp_dagster_tests.conftest import settings_in

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

_LOOK = '''
import json
from pathlib import Path

def look(instance, target):
    """Write down what an instance is."""
    runs = instance.get_concurrency_config().run_queue_config
    Path(target).write_text(json.dumps({
        "runs": str(Path(instance.event_log_storage.path_for_shard("x")).parent.resolve()),
        "artifacts": str(Path(instance.storage_directory()).resolve()),
        "max_concurrent_runs": runs.max_concurrent_runs,
        "limits": [[limit["key"], limit["limit"]] for limit in runs.tag_concurrency_limits],
        "coordinator": type(instance.run_coordinator).__name__,
        "dequeue_seconds": instance.run_coordinator.dequeue_interval_seconds,
        "monitoring": instance.run_monitoring_enabled,
        "sensor_threads": instance.get_settings("sensors")["num_workers"],
        "telemetry": instance.telemetry_enabled,
        "runs_seen": len(instance.get_runs()),
    }))
'''
_ASSET = """
import os
from dagster import AssetExecutionContext, asset
from look import look

@asset
def looked(context: AssetExecutionContext) -> None:
    look(context.instance, os.environ["LOOK_AT"])
"""
_ISCP = """
import os, sys
from iscp_dagster.orchestration.instance import open_instance
from iscp_dagster.settings import Settings
from look import look
with open_instance(Settings.from_env()) as instance:
    look(instance, os.environ["LOOK_AT"])
"""


class Root:
    """A copy of the repository's root, with its two files for Dagster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("dagster.yaml", "workspace.yaml"):
            shutil.copy(ROOT / name, folder)
        (folder / "look.py").write_text(_LOOK)
        (folder / "assets.py").write_text(_ASSET)

    @property
    def home(self) -> Path:
        return self.folder / ".iscp"

    def dagster(self, home: Path | None = None) -> dict[str, Any]:
        """Materialize an asset with plain `dagster`."""
        arguments = ["asset", "materialize", "-f", "assets.py", "--select", "looked"]
        config = {} if home is None else {"DAGSTER_HOME": str(home)}
        self._run([BIN / "dagster", *arguments], config)
        return self._read()

    def iscp(self) -> dict[str, Any]:
        """Open the instance as every `iscp` command does."""
        self._run([BIN / "python", "-c", _ISCP], {})
        return self._read()

    def edit(self, limit: int) -> None:
        """Change how many runs may run at once."""
        file = self.folder / "dagster.yaml"
        config = yaml.safe_load(file.read_text())
        config["concurrency"]["runs"]["max_concurrent_runs"] = limit
        file.write_text(yaml.safe_dump(config))

    def _run(self, command: list[Any], config: dict[str, str]) -> None:
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ISCP_", "DAGSTER_"))
        }
        env |= config | {"LOOK_AT": str(self.folder / "seen.json"), "PYTHONPATH": str(self.folder)}
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def _read(self) -> dict[str, Any]:
        return json.loads((self.folder / "seen.json").read_text())


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A fresh copy of the root."""
    return Root(tmp_path)


@pytest.mark.dagster
def test_iscp_and_plain_dagster_share_one_instance_and_follow_the_root_s_file(root: Root) -> None:
    root.edit(7)
    first = root.iscp()
    assert (first["max_concurrent_runs"], first["runs_seen"]) == (7, 0)
    root.edit(2)
    views = [
        root.dagster(),
        root.iscp(),
        root.dagster(home=root.folder),
        root.dagster(home=root.home),
    ]
    assert [view.pop("runs_seen") for view in views] == [1, 1, 2, 3]
    assert views[1:] == views[:-1]
    assert views[0] == {
        "runs": str(root.home / "history" / "runs"),
        "artifacts": str(root.home / "storage"),
        "max_concurrent_runs": 2,
        "limits": [["iscp/account", 3], ["iscp/kind", 2]],
        "coordinator": "QueuedRunCoordinator",
        "dequeue_seconds": 1,
        "monitoring": True,
        "sensor_threads": 4,
        "telemetry": False,
    }
    left = {path.name for path in root.folder.iterdir()}
    assert not [name for name in left if name.startswith((".tmp_dagster", "history", "storage"))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder; what is done to DAGSTER_HOME is undone."""
    monkeypatch.setenv("DAGSTER_HOME", "not set yet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config_in(home: Path) -> dict[str, Any]:
    return yaml.safe_load((home / "dagster.yaml").read_text())


def test_the_paths_of_the_root_s_file_point_at_the_home_wherever_it_is(folder: Path) -> None:
    home = folder / "else" / "where"
    assert prepare_home(settings_in(home)) == home
    config = config_in(home)
    assert config["storage"]["sqlite"]["base_dir"] == str(home)
    assert config["local_artifact_storage"]["config"]["base_dir"] == str(home)
    assert config["compute_logs"]["config"]["base_dir"] == str(home / "storage")
    assert os.environ["DAGSTER_HOME"] == str(home)
    ours = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    assert config["concurrency"] == ours["concurrency"]
    assert config.keys() == ours.keys()


def test_the_working_folder_s_own_file_wins_and_only_its_iscp_paths_move(folder: Path) -> None:
    own = {"storage": {"sqlite": {"base_dir": ".iscp/dagster"}}, "tags": [".iscpx", ".iscp", 3]}
    (folder / "dagster.yaml").write_text(yaml.safe_dump(own))
    home = folder / "home"
    prepare_home(settings_in(home))
    assert config_in(home) == {
        "storage": {"sqlite": {"base_dir": f"{home}/dagster"}},
        "tags": [".iscpx", str(home), 3],
    }


def test_a_file_that_is_as_it_should_be_is_not_written_again(folder: Path) -> None:
    home = folder / "home"
    prepare_home(settings_in(home))
    before = (home / "dagster.yaml").stat()
    prepare_home(settings_in(home))
    after = (home / "dagster.yaml").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in home.iterdir()] == ["dagster.yaml"]


def test_the_opened_instance_keeps_what_was_written_to_it(folder: Path) -> None:
    settings = settings_in(folder / "home")
    with open_instance(settings) as instance:
        assert isinstance(instance, DagsterInstance)
        instance.add_dynamic_partitions("iscp/a/b/c", ["x"])
    with open_instance(settings) as instance:
        assert instance.get_dynamic_partitions("iscp/a/b/c") == ["x"]


def test_a_home_that_can_not_be_written_is_told_in_one_line(folder: Path) -> None:
    (folder / "file").write_text("in the way")
    with pytest.raises(UsageError, match="ISCP_HOME") as caught:
        prepare_home(settings_in(folder / "file" / "home"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["storage: [", "- a\n- b\n", "colour: red\n", "sensors: 7\n"])
def test_a_wrong_file_is_told_in_one_line_that_names_it(folder: Path, text: str) -> None:
    (folder / "dagster.yaml").write_text(text)
    settings = settings_in(folder / "home")
    with pytest.raises(UsageError, match=r"dagster\.yaml") as caught, open_instance(settings):
        pass
    assert "\n" not in str(caught.value)


def test_an_empty_file_means_dagster_s_own_settings(folder: Path) -> None:
    (folder / "dagster.yaml").write_text("# nothing\n")
    with open_instance(settings_in(folder / "home")) as instance:
        assert instance.root_directory == str(folder / "home")

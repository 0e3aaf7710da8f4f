"""A project folder where the demo ran on a few rows, and plain `dagster dev` in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dagster import AssetKey

from iscp_dagster.demo import library
from iscp_dagster.orchestration.build import build_definitions
from iscp_dagster.orchestration.instance import open_instance
from iscp_dagster.orchestration.sync import sync
from iscp_dagster.settings import Settings
from iscp_dagster_tests.browser.dagster_dev import DagsterDev

ROOT = Path(__file__).parents[2]
CLEARED = ("ISCP_HOME", "ISCP_LOG_URL", "ISCP_WAREHOUSE", "SPARK_REMOTE", "DAGSTER_HOME")
FOR_README = bool(os.environ.get("ISCP_SCREENSHOTS"))
"""Pictures for the README show all of the demo's rows, and the daemon at work."""


@pytest.fixture(scope="module")
def project(spark: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A folder as somebody has it who cloned the repository and said `make demo`."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("dagster.yaml", "workspace.yaml"):
        shutil.copy(ROOT / name, folder / name)
    with pytest.MonkeyPatch.context() as patch:
        for name in CLEARED:
            patch.delenv(name, raising=False)
        patch.setenv("DAGSTER_HOME", str(folder / ".iscp"))
        patch.chdir(folder)
        docs = library.standard_library()[:: 1 if FOR_README else 20]
        patch.setattr(library, "standard_library", lambda: docs)
        settings = Settings.from_env()
        library.make_demo(settings)
        with open_instance(settings) as instance:
            assert sync(settings, instance).behind == ()
        _check(settings, "by_module")
        yield settings


@pytest.fixture(scope="module")
def dagster_dev(project: Settings) -> Iterator[DagsterDev]:
    """Dagster over the project, once its sensor has ticked."""
    environ = {name: value for name, value in os.environ.items() if name not in CLEARED}
    with DagsterDev.start(project.home.parent, environ) as running:
        if FOR_README:
            _change_and_wait(project, running)
            _check(project, *library.JOBS)
        yield running


def _check(settings: Settings, *indexes: str) -> None:
    """Run all checks of some indexes, as somebody does who presses their button."""
    definitions = build_definitions(settings)
    graph = definitions.resolve_asset_graph()
    keys = [AssetKey(["sys", "demo", "stdlib", name]) for name in indexes]
    job = definitions.resolve_implicit_global_asset_job_def().get_subset(
        asset_check_selection={check for key in keys for check in graph.get(key).check_keys}
    )
    with open_instance(settings) as instance:
        assert job.execute_in_process(instance=instance).success


def _change_and_wait(settings: Settings, running: DagsterDev) -> None:
    """Give the daemon something to do, and wait until it is done."""
    edited = [replace(doc, doc=f"{doc.doc}\n\nAgain.") for doc in library.standard_library()[::9]]
    library.put(library.demo_table_uri(settings), edited)
    for sentence in ("1 table: 1 in flight", "1 table: 1 unchanged"):
        running.until(lambda told=sentence: running.last_skip_reason() == told, sentence)

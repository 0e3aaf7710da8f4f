"""The same index behind an S3 endpoint: conditional puts decide who commits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from iscp_dagster.errors import IndexContended
from iscp_dagster.rules.model import Window
from iscp_dagster.stores.lance_index import LanceIndex
from iscp_dagster.stores.lance_upkeep import clean, optimize
from iscp_dagster_tests.stores.lance_history import (
    WORDS,
    apply,
    content,
    create,
    found_by,
    stage,
    state,
    ts,
)

pytest.importorskip("moto.server")

URI = "s3://lake/some folder/index"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "iscp_dagster_tests.stores.s3_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert server.stdout is not None
    yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    server.communicate()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty bucket `lake`; the environment points to it."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")).close()
    urlopen(Request(f"{endpoint}/lake", method="PUT")).close()


@pytest.mark.usefixtures("bucket")
def test_windows_searches_maintenance_and_drop_work_as_on_disk() -> None:
    index = create(URI)
    for version in (5, 6, 9):
        apply(index, version)
        reader = LanceIndex.open(URI)
        assert reader.watermark == ts(version)
        assert content(reader) == state(version)
        for word in WORDS[:3]:
            assert found_by(reader, word) == {
                n for n, text in state(version).items() if word in text.split()
            }
    optimize(index)
    clean(index)
    assert content(LanceIndex.open(URI)) == state(9)
    index.drop()
    assert index.standing() is None


@pytest.mark.usefixtures("bucket")
def test_of_two_writers_one_always_loses_cleanly() -> None:
    index = create(URI)
    since = apply(index, 3)
    for version in range(3, 9):
        window = Window(ts(version), ts(version + 1))
        staged = [stage(index, version, version + 1) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            tries = [pool.submit(index.commit, since, window, one) for one in staged]
        errors = [error for one in tries if (error := one.exception())]
        assert [type(error) for error in errors] == [IndexContended]
        since = next(one.result() for one in tries if not one.exception())
        assert content(LanceIndex.open(URI)) == state(version + 1)

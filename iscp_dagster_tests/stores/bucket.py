"""A bucket of an S3 server on this machine, for tests of object stores."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The server's address."""
    pytest.importorskip("moto.server")
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
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket; the environment points to it."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")).close()
    urlopen(Request(f"{endpoint}/lake", method="PUT")).close()
    return "s3://lake"

"""Several processes on one index, and processes that die: never a lost row, never one twice.

`ISCP_TEST_WRITER_ROUNDS` and `ISCP_TEST_KILL_ROUNDS` ask for more rounds than the few of every day.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from iscp_dagster.stores.lance_index import LanceIndex
from iscp_dagster_tests.stores.lance_history import (
    WORDS,
    apply,
    content,
    create,
    found_by,
    state,
)

WRITER_ROUNDS = int(os.environ.get("ISCP_TEST_WRITER_ROUNDS", "12"))
KILL_ROUNDS = int(os.environ.get("ISCP_TEST_KILL_ROUNDS", "4"))

pytestmark = pytest.mark.timeout(120 + 3 * WRITER_ROUNDS + 10 * KILL_ROUNDS)


class Worker:
    """One process of `lance_worker`."""

    def __init__(self, uri: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "iscp_dagster_tests.stores.lance_worker", uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self.answer() == "ready"

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "the worker died"
        return line

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start() -> Iterator[Callable[[str], Worker]]:
    """Start workers that end with the test."""
    workers: list[Worker] = []

    def new(uri: str) -> Worker:
        workers.append(Worker(uri))
        return workers[-1]

    yield new
    for worker in workers:
        worker.kill()


def check(uri: str) -> int:
    """The index holds exactly the table at its watermark; return which version that is."""
    reader = LanceIndex.open(uri)
    version = reader.watermark.version
    rows = state(version)
    assert content(reader) == rows
    for word in WORDS[:4]:
        assert found_by(reader, word) == {n for n, t in rows.items() if word in t.split()}
    return version


def test_of_two_writers_one_always_loses_cleanly(
    tmp_path: Path, start: Callable[[str], Worker]
) -> None:
    index = create(tmp_path / "index")
    apply(index, 5)
    writers = [start(index.uri), start(index.uri)]
    rng = random.Random(1)
    version = 5
    for _ in range(WRITER_ROUNDS):
        ends = (version + rng.randint(1, 2), version + rng.randint(1, 3))
        for writer, end in zip(writers, ends, strict=True):
            writer.tell(f"stage {end}")
        assert [writer.answer() for writer in writers] == ["staged", "staged"]
        for writer in writers:
            writer.tell("commit")
        answers = [writer.answer() for writer in writers]
        assert sorted(answers) == ["lost", "won"]
        assert check(index.uri) == ends[answers.index("won")]
        version = ends[answers.index("won")]


def test_maintenance_and_windows_go_on_side_by_side(
    tmp_path: Path, start: Callable[[str], Worker]
) -> None:
    index = create(tmp_path / "index")
    apply(index, 5)
    busy = start(index.uri)
    busy.tell("optimize")
    for version in range(6, 6 + WRITER_ROUNDS):
        apply(index, version)
        assert check(index.uri) == version
    assert busy.answer() == "optimized"


def test_a_killed_writer_leaves_the_index_at_the_end_of_a_window(
    tmp_path: Path, start: Callable[[str], Worker]
) -> None:
    index = create(tmp_path / "index")
    apply(index, 0)
    rng = random.Random(2)
    last = 0
    for _ in range(KILL_ROUNDS):
        worker = start(index.uri)
        worker.tell("run")
        for _ in range(rng.randint(0, 3)):
            worker.answer()
        threading.Event().wait(rng.uniform(0, 0.06))  # anywhere within a window
        worker.kill()
        stands_at = check(index.uri)
        assert stands_at >= last
        apply(index, stands_at + 1)
        last = check(index.uri)
        assert last == stands_at + 1

"""Several processes that do the same work on one log at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


class Crew:
    """Processes of `worker.py`; each takes a line of JSON with work and answers with another."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._processes: list[subprocess.Popen[str]] = []
        # A thread per process: work that follows a failure waits for its turn.
        self._threads = [ThreadPoolExecutor(1) for _ in range(size)]

    def __enter__(self) -> Crew:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "iscp_dagster_tests.joblog.worker"],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(self.size)
        ]
        self.all("wake_up")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for thread in self._threads:
            thread.shutdown()

    def start(self, work: str, **arguments: Any) -> list[Future[Any]]:
        """Hand the same work to every process; each also gets its number as `worker`."""
        return [
            thread.submit(_ask, process, {"work": work, "worker": number, **arguments})
            for number, (thread, process) in enumerate(
                zip(self._threads, self._processes, strict=True)
            )
        ]

    def all(self, work: str, **arguments: Any) -> list[Any]:
        """Let every process do the same work at once and return their answers."""
        return [answer.result(timeout=120) for answer in self.start(work, **arguments)]


def _ask(process: subprocess.Popen[str], request: dict[str, Any]) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise AssertionError(f"a worker ended in the middle of {request}")
    result = json.loads(answer)
    if "failure" in result:
        raise AssertionError(f"a worker failed in {request}:\n{result['failure']}")
    return result["answer"]

"""One process of a crew: work on a log, told by lines of JSON on stdin, answered on stdout."""

from __future__ import annotations

import json
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from iscp_dagster.errors import ClaimLost, UnknownJob
from iscp_dagster.joblog import JobLog
from iscp_dagster.joblog.iterations import ConsumerRecord
from iscp_dagster.rules.model import JobKey
from iscp_dagster.rules.spec import JobSpec, TriggerSpec
from iscp_dagster_tests.joblog.databases import NOW, TABLE, add_table

START_SPEC = JobSpec(
    type="mirror", trigger=TriggerSpec(kind="periodic", interval=timedelta(days=1))
)

FIELDS: tuple[tuple[Callable[[int], dict[str, Any]], Callable[[JobSpec], int]], ...] = (
    (lambda n: {"priority": n}, lambda spec: spec.priority),
    (lambda n: {"description": str(n)}, lambda spec: int(spec.description)),
    (lambda n: {"owners": [f"team:{n}"]}, lambda spec: int(spec.owners[0].removeprefix("team:"))),
    (lambda n: {"max_window_versions": n}, lambda spec: spec.max_window_versions),
    (lambda n: {"max_window_bytes": n}, lambda spec: spec.max_window_bytes),
    (lambda n: {"timeout": f"{n}s"}, lambda spec: round(spec.timeout.total_seconds())),
    (lambda n: {"lag_target": f"{n}s"}, lambda spec: round(spec.lag_target.total_seconds())),
    (
        lambda n: {"trigger": {"interval": f"{n}s"}},
        lambda spec: round((spec.trigger.interval or timedelta()).total_seconds()),
    ),
)
"""One field of a spec per worker: how it writes a number there, and how the number is read back.

Since nobody else writes it, a field that does not hold its worker's last number was lost.
"""


def wake_up(worker: int) -> int:
    """Answer once everything is imported."""
    return worker


def add_same_table(worker: int, url: str) -> bool:
    """Use a log that may not exist yet."""
    with JobLog(url) as log:
        return log.tables.add(TABLE, uri="/data/orders", pk=("id",), delta_id="d", now=NOW)


def count_up(worker: int, url: str, name: str, times: int) -> int:
    """Add to one job's number by compare-and-set, `times` times; return how often it was lost."""
    losses = 0
    with JobLog(url) as log:
        while times:
            job = log.jobs.get(TABLE.job(name))
            try:
                log.jobs.compare_and_set(job, attempt=job.attempt + 1)
                times -= 1
            except ClaimLost:
                losses += 1
    return losses


def finish(worker: int, url: str, iteration_id: int) -> None:
    """Close one iteration, as if this worker had run it."""
    with JobLog(url) as log:
        log.iterations.finish(
            iteration_id, now=NOW, consumers=[ConsumerRecord(f"by-{worker}", worker)]
        )


def roam(worker: int, url: str, names: int, turns: int) -> dict[str, Any]:
    """Register, alter, claim and drop jobs at random; return what worked and what looked wrong."""
    with JobLog(url) as log:
        add_table(log)
        return _Roamer(log, worker, names).roam(turns)


class _Roamer:
    def __init__(self, log: JobLog, worker: int, names: int) -> None:
        self._log = log
        self._write, _ = FIELDS[worker]
        self._names = names
        self._random = random.Random(worker)
        self._registered: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._altered: dict[int, int] = {}
        self._counted: Counter[int] = Counter()
        self._lowest: dict[JobKey, int] = {}
        self._wrong: list[str] = []

    def roam(self, turns: int) -> dict[str, Any]:
        deeds = (self._register, self._unregister, self._alter, self._alter, self._count)
        for turn in range(turns):
            key = TABLE.job(f"job-{self._random.randrange(self._names)}")
            try:
                self._random.choice(deeds)(key, turn % 100 + 1)
            except (UnknownJob, ClaimLost):
                continue
            if turn % 20 == 0:
                self._look()
        return {
            "registered": self._registered,
            "dropped": self._dropped,
            "altered": self._altered,
            "counted": self._counted,
            "wrong": self._wrong,
        }

    def _register(self, key: JobKey, _number: int) -> None:
        if self._log.jobs.register(key, START_SPEC, NOW):
            self._registered[key.name] += 1

    def _unregister(self, key: JobKey, _number: int) -> None:
        if self._log.jobs.unregister(key, NOW):
            self._dropped[key.name] += 1
            if key in self._lowest:
                self._lowest[key] += 1

    def _alter(self, key: JobKey, number: int) -> None:
        job = self._log.jobs.update_spec(key, self._write(number))
        self._saw(key, job.job_id)
        self._altered[job.job_id] = number

    def _count(self, key: JobKey, _number: int) -> None:
        job = self._log.jobs.get(key)
        self._saw(key, job.job_id)
        self._log.jobs.compare_and_set(job, attempt=job.attempt + 1)
        self._counted[job.job_id] += 1

    def _saw(self, key: JobKey, job_id: int) -> None:
        if job_id < self._lowest.get(key, 0):
            self._wrong.append(f"{key}: generation {job_id} after {self._lowest[key]} was due")
        self._lowest[key] = job_id

    def _look(self) -> None:
        live = Counter(job.key for job in self._log.jobs.list())
        self._wrong.extend(f"{key} lives {n} times" for key, n in live.items() if n > 1)


_WORK: dict[str, Callable[..., Any]] = {
    work.__name__: work for work in (wake_up, add_same_table, count_up, finish, roam)
}


def main() -> None:
    """Serve until stdin ends."""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": _WORK[request.pop("work")](**request)}
        except Exception:  # noqa: BLE001 - the crew shows it where the test reads it
            answer = {"failure": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

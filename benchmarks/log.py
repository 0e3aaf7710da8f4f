"""How fast the log is: listing, following changes, registering.

Run `python benchmarks/log.py`; PostgreSQL is measured too where ISCP_TEST_POSTGRES_URL names a
server (each measurement there has a schema of its own, which goes away).
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import TS
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster_tests.joblog.databases import (
    NOW,
    TABLE,
    add_table,
    fill,
    filled_key,
    fresh_postgresql,
    fresh_sqlite,
)

FEW, MANY, VERY_MANY = 10, 10_000, 100_000
CHANGED = 10
REGISTRATIONS = 500


def main() -> None:
    """Measure and print."""
    table = Table(title="The log")
    table.add_column("what")
    for name in databases():
        table.add_column(name, justify="right")
    results = [measure(fresh) for fresh in databases().values()]
    for what in results[0]:
        table.add_row(what, *(result[what] for result in results))
    Console().print(table)


def databases() -> dict[str, Callable[[], AbstractContextManager[str]]]:
    """The databases there are, each as a maker of URLs of empty logs."""
    found: dict[str, Callable[[], AbstractContextManager[str]]] = {"SQLite": _sqlite}
    server = os.environ.get("ISCP_TEST_POSTGRES_URL")
    if server:
        found["PostgreSQL"] = lambda: fresh_postgresql(server)
    return found


def measure(fresh: Callable[[], AbstractContextManager[str]]) -> dict[str, str]:
    """Take all measurements on one database."""
    result: dict[str, str] = {}
    for jobs in (FEW, MANY):
        with fresh() as url:
            fill(url, jobs)
            result[f"list {jobs:,} jobs, new process's first time"] = _ms(_first_list(url))
            with JobLog(url) as log:
                log.jobs.list()
                result[f"list {jobs:,} jobs"] = _ms(_median(lambda log=log: log.jobs.list()))
    with fresh() as url:
        fill(url, VERY_MANY)
        with JobLog(url) as log:
            seen = log.jobs.changes(VERY_MANY - 1).change_seq
            for number in range(CHANGED):
                job = log.jobs.get(filled_key(number * 9_999 + 1))
                log.jobs.compare_and_set(job, watermark=TS(1, NOW))
            assert len(log.jobs.changes(seen).jobs) == CHANGED
            what = f"follow {CHANGED} changes among {VERY_MANY:,} jobs"
            result[what] = _ms(_median(lambda: log.jobs.changes(seen)))
            key = filled_key(77_777)
            what = f"compare-and-set of one of {VERY_MANY:,} jobs"
            result[what] = _ms(
                _median(lambda: log.jobs.compare_and_set(log.jobs.get(key), attempt=1))
            )
    with fresh() as url, JobLog(url) as log:
        add_table(log)
        spec = JobSpec(type="mirror")
        begin = time.perf_counter()
        for number in range(REGISTRATIONS):
            log.jobs.register(TABLE.job(f"job-{number}"), spec, NOW)
        rate = REGISTRATIONS / (time.perf_counter() - begin)
        result["register, by one process"] = f"{rate:,.0f}/s"
    return result


@contextmanager
def _sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder, fresh_sqlite(Path(folder)) as url:
        yield url


def _first_list(url: str) -> float:
    begin = time.perf_counter()
    with JobLog(url) as log:
        log.jobs.list()
    return time.perf_counter() - begin


def _median(call: Callable[[], object], times: int = 9) -> float:
    taken: list[float] = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


if __name__ == "__main__":
    main()

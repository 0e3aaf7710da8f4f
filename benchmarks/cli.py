"""How fast the command line answers: `iscp --help`, and `iscp jobs --json` as the jobs grow.

Run `python benchmarks/cli.py`. Every measurement is a process of its own, started the way a shell
does it; the jobs are spread over real Delta tables and stand at different versions of them.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from rich.console import Console
from rich.table import Table

from iscp_dagster.sources.facts import read_facts
from iscp_dagster_tests.joblog.databases import execute, fill

ISCP = Path(sys.executable).with_name("iscp")
FEW, MANY = 10, 10_000
PER_TABLE = 10
COMMITS = 4
TIMES = 5
HELP_TARGET = 0.5
JOBS_TARGET = 1.0


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds by the clock, and of a processor: on a busy machine they differ."""

    seconds: float
    cpu: float

    @property
    def cells(self) -> tuple[str, str]:
        """Both, to show."""
        return f"{self.seconds:.2f} s", f"{self.cpu:.2f} s"


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        help_taken = _median(Path(folder), "--help")
        few, many = (_jobs(Path(folder) / str(jobs), jobs) for jobs in (FEW, MANY))
    table = Table(title=f"The command line, medians of {TIMES}")
    table.add_column("what")
    for column in ("took", "of it CPU", "target"):
        table.add_column(column, justify="right")
    listing = "iscp jobs --json, {:,} jobs, {:,} per table"
    table.add_row("iscp --help", *help_taken.cells, f"< {HELP_TARGET} s")
    table.add_row(listing.format(FEW, PER_TABLE), *few.cells, "")
    table.add_row(listing.format(MANY, PER_TABLE), *many.cells, "")
    more = Taken(many.seconds - few.seconds, many.cpu - few.cpu)
    table.add_row("difference", *more.cells, f"< {JOBS_TARGET} s")
    Console().print(table)
    if help_taken.seconds >= HELP_TARGET or more.seconds >= JOBS_TARGET:
        sys.exit("missed a target")


def _jobs(home: Path, jobs: int) -> Taken:
    """Time the listing of so many jobs."""
    _set_up(home, jobs)
    rows = json.loads(_run(home, "jobs", "--json"))
    assert len(rows) == jobs
    # The last commit is ahead of all but every fourth job: their lag has to be read.
    assert sum(row["lag_seconds"] > 0 for row in rows) == sum(i % COMMITS != 3 for i in range(jobs))
    return _median(home, "jobs", "--json")


def _set_up(home: Path, jobs: int) -> None:
    """Make a log with jobs that all differ, on tables that are all there."""
    template = home / "template"
    for number in range(COMMITS):
        write_deltalake(
            template,
            pa.table({"id": [number]}),
            mode="append",
            configuration={"delta.enableChangeDataFeed": "true"},
        )
    for number in range(jobs // PER_TABLE + 1):
        shutil.copytree(template, home / f"t{number}")
    url = f"sqlite:///{home / 'iscp.db'}"
    fill(url, jobs, PER_TABLE)
    execute(url, "update iscp_tables set uri = :root || '/' || table_name", root=str(home))
    # A TS is a time and a version: times only label.
    head = str(read_facts(str(template)).ts).rpartition("-")[0]
    execute(
        url,
        """
        update mo_iscp_log set
            watermark = :head || '-' || (job_id % :commits),
            stage = 'tail',
            job_spec = json_set(job_spec, '$.description', 'index number ' || job_id)
        """,
        head=head,
        commits=COMMITS,
    )


def _median(home: Path, *arguments: str) -> Taken:
    seconds: list[float] = []
    cpu: list[float] = []
    for _ in range(TIMES):
        begin, begin_cpu = time.perf_counter(), _cpu_of_children()
        _run(home, *arguments)
        seconds.append(time.perf_counter() - begin)
        cpu.append(_cpu_of_children() - begin_cpu)
    return Taken(statistics.median(seconds), statistics.median(cpu))


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(home: Path, *arguments: str) -> bytes:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ISCP_")}
    done = subprocess.run(
        [ISCP, *arguments], env=env | {"ISCP_HOME": str(home)}, check=True, capture_output=True
    )
    return done.stdout


if __name__ == "__main__":
    main()

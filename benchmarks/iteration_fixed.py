"""What an iteration costs that has nothing to do: in a local session, and over Connect.

Run as a program of its own for each kind of session, since one process has one kind. The window
holds one commit without changes for the index; its parts are printed as a line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.iteration_house import House
from iscp_dagster.settings import Settings

TABLE = "still"


@dataclass(frozen=True)
class Parts:
    """Where the seconds of an empty iteration go."""

    kind: str
    session: float
    """Until the session is there."""
    first: float
    """The first iteration of the process, the session's start not included."""
    whole: float
    """Those after it, in the middle."""
    scan: float
    """Of which: opening the consumers and reading the change feed."""
    consumer: float
    """Of which: the consumer, which commits the new watermark."""
    rest: float
    """Of which: claim and record."""


def measure_fixed(rounds: int) -> list[Parts]:
    """Measure both kinds of session, each in a program of its own."""
    found = [_run("local", rounds, "")]
    from iscp_dagster.spark.connect_server import start_connect_server

    with tempfile.TemporaryDirectory(prefix="iscp-connect-") as home:
        settings = Settings.from_env({"ISCP_HOME": home})
        with start_connect_server(settings) as server:
            found.append(_run("Connect", rounds, server.url))
    return found


def _run(kind: str, rounds: int, url: str) -> Parts:
    command = [sys.executable, "-m", "benchmarks.iteration_fixed", kind, str(rounds), url]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Parts(**json.loads(done.stdout.splitlines()[-1]))


def _measure(kind: str, rounds: int, url: str) -> Parts:
    with tempfile.TemporaryDirectory(prefix="iscp-fixed-") as folder:
        started = time.perf_counter()
        house = House.open(Path(folder), **({"SPARK_REMOTE": url} if url else {}))
        house.spark.sql("select 1").collect()
        session = time.perf_counter() - started
        rows = pa.table({"id": [1, 2, 3], "note": ["a", "b", "c"]})
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(house.source(TABLE), rows, configuration=feed)
        house.add(TABLE, "id", {"copy": {"type": "mirror", "columns": ["id"]}})
        house.catch_up(TABLE, ["copy"])
        runs = []
        for number in range(rounds + 1):
            DeltaTable(house.source(TABLE)).update({"note": f"'{number}'"}, predicate="id = 1")
            runs.append(house.catch_up(TABLE, ["copy"]))
        middle = sorted(runs[1:], key=lambda ran: ran.timing.seconds)[rounds // 2]
        result = middle.report.jobs[0].result
        assert result is not None
        whole, scan = middle.timing.seconds, middle.report.scan_seconds
        return Parts(
            kind=kind,
            session=session,
            first=runs[0].timing.seconds,
            whole=whole,
            scan=scan,
            consumer=result.seconds,
            rest=whole - scan - result.seconds,
        )


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(sys.argv[1], int(sys.argv[2]), sys.argv[3]))))

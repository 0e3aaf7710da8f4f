"""How fast the probe finds out that nothing happened.

Compares probing n unchanged tables with opening every one of them with `deltalake.DeltaTable`.
All tables are opened, none is extrapolated. The tables are copies of one another: five commits,
one row each.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from iscp_dagster.rules.model import History, Table, TableKey
from iscp_dagster.sources.probe import Probe, ProbeRequest

COMMITS = 5


@dataclass(frozen=True, slots=True)
class ProbeFigures:
    """Seconds for all tables together."""

    tables: int
    first_seconds: float
    """The first probe, which has to list every log and check every Delta id."""
    unchanged_seconds: float
    """The slowest of the probes after it."""
    hundred_changed_seconds: float
    """A probe in which a hundred tables (or all, if fewer) have a new commit."""
    open_seconds: float
    """Opening each table with `DeltaTable`."""

    @property
    def times_faster(self) -> float:
        """How much less an unchanged probe takes than opening the tables."""
        return self.open_seconds / self.unchanged_seconds


def make_tables(folder: Path, count: int) -> list[Table]:
    """Write `count` small Delta tables with the change feed on."""
    first = folder / "t0"
    for i in range(COMMITS):
        write_deltalake(
            first,
            pa.table({"id": [i], "body": [f"text {i}"]}),
            mode="append",
            configuration={"delta.enableChangeDataFeed": "true"},
        )
    delta_id = str(DeltaTable(first).metadata().id)
    for i in range(1, count):
        shutil.copytree(first, folder / f"t{i}")
    return [
        Table(
            key=TableKey("sys", "bench", f"t{i}"),
            table_id=i,
            uri=str(folder / f"t{i}"),
            pk=("id",),
            delta_id=delta_id,
            added_at=datetime.now(UTC),
        )
        for i in range(count)
    ]


def commit_to(table: Table) -> None:
    """Add one row."""
    write_deltalake(table.uri, pa.table({"id": [99], "body": ["new"]}), mode="append")


def measure_probe(n_tables: int, rounds: int = 5) -> ProbeFigures:
    """Measure on fresh tables in a temporary folder, which is removed again."""
    with tempfile.TemporaryDirectory(prefix="iscp-probe-") as folder:
        tables = make_tables(Path(folder), n_tables)
        requests = [ProbeRequest(table, since=COMMITS - 1) for table in tables]
        probe = Probe()
        first_seconds, first = _timed(lambda: probe.probe(requests))
        unchanged = [_timed(lambda: probe.probe(requests)) for _ in range(rounds)]
        for _, found in unchanged:
            _expect(len(found) == n_tables, "a table is absent")
            _expect(all(found[key] is first[key] for key in found), "an unchanged table changed")
        for table in tables[:100]:
            commit_to(table)
        changed_seconds, found = _timed(lambda: probe.probe(requests))
        heads = [h.head.version for h in found.values() if isinstance(h, History)]
        _expect(
            heads.count(COMMITS) == min(100, n_tables), "other tables changed than were written"
        )
        open_seconds, _ = _timed(lambda: [DeltaTable(table.uri).version() for table in tables])
    return ProbeFigures(
        tables=n_tables,
        first_seconds=first_seconds,
        unchanged_seconds=max(seconds for seconds, _ in unchanged),
        hundred_changed_seconds=changed_seconds,
        open_seconds=open_seconds,
    )


def _timed(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(otherwise)


def main() -> None:
    """Print the figures for 1,000 and 10,000 tables, or for the counts given."""
    counts = [int(argument) for argument in sys.argv[1:]] or [1_000, 10_000]
    print(
        f"{'tables':>8} {'first':>9} {'unchanged':>10} {'100 new':>9} {'DeltaTable':>11} {'x':>6}"
    )
    for count in counts:
        figures = measure_probe(count)
        print(
            f"{figures.tables:>8} {figures.first_seconds:>8.3f}s"
            f" {figures.unchanged_seconds:>9.3f}s {figures.hundred_changed_seconds:>8.3f}s"
            f" {figures.open_seconds:>10.3f}s {figures.times_faster:>6.0f}"
        )


if __name__ == "__main__":
    main()

"""The same changed rows on ever larger tables, and a full rebuild of the largest.

The tables are made of one Debian release: its packages, then more copies of them under other names
and with their texts rotated, until there are enough rows. The changed rows are the same in each.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.iteration_house import House, Timing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPECS = {
    "copy": {"type": "mirror"},
    "by_section": {
        "type": "lookup",
        "options": {"by": "section"},
        "columns": ["version", "maintainer"],
    },
    "per_section": {
        "type": "aggregate",
        "options": {"group_by": "section", "measures": "count,sum:installed_kb,avg:installed_kb"},
    },
}
SMALLEST = 10_000


@dataclass(frozen=True)
class Growth:
    """One size."""

    rows: int
    rebuilds: tuple[Timing, ...]
    windows: tuple[Timing, ...]
    scans: tuple[float, ...]

    @property
    def window(self) -> Timing:
        """The median window."""
        return _median(self.windows)

    @property
    def rebuild(self) -> Timing:
        """The median rebuild."""
        return _median(self.rebuilds)


def measure_growth(
    house: House, data: Path, sizes: list[int], changed: int, rounds: int
) -> list[Growth]:
    """Measure each size, smallest first."""
    return [_measure(house, data, rows, changed, rounds) for rows in sizes]


def _measure(house: House, data: Path, rows: int, changed: int, rounds: int) -> Growth:
    table = f"grown_{rows}"
    writer = _grown(house, data, rows).write.format("delta")
    writer.option("delta.enableChangeDataFeed", "true").save(house.source(table))
    house.add(table, "package", SPECS)
    rebuilds = [house.catch_up(table, list(SPECS)).timing]
    for _ in range(2):
        house.start_anew(table)
        rebuilds.append(house.catch_up(table, list(SPECS)).timing)
    windows = []
    for number in range(rounds + 1):
        _change(house, data, table, changed, number)
        windows.append(house.catch_up(table, list(SPECS)))
    # The first of each is the JVM's first time, too.
    return Growth(
        rows,
        tuple(rebuilds[1:]),
        tuple(ran.timing for ran in windows[1:]),
        tuple(ran.report.scan_seconds for ran in windows[1:]),
    )


def _grown(house: House, data: Path, rows: int) -> DataFrame:
    spark = house.spark
    base = _smallest(house, data)
    copies = -(-rows // SMALLEST)
    at = "pmod(hash(package, copy), length(description)) + 1"
    return (
        spark.range(copies)
        .withColumnRenamed("id", "copy")
        .crossJoin(base)
        .selectExpr(
            "if(copy = 0, package, concat(package, '~', copy)) as package",
            "version",
            "section",
            "maintainer",
            "installed_kb",
            f"concat(substring(description, {at}), substring(description, 1, {at} - 1))"
            " as description",
        )
        .repartition(8)
    )


def _smallest(house: House, data: Path) -> DataFrame:
    """So many packages, from all over the alphabet."""
    release = house.spark.read.parquet(str(data / "debian-bookworm.parquet"))
    return release.dropDuplicates(["package"]).orderBy("description", "package").limit(SMALLEST)


def _change(house: House, data: Path, table: str, changed: int, number: int) -> None:
    from delta.tables import DeltaTable as Target

    picked = _smallest(house, data).orderBy("package").limit(changed).select("package")
    (
        Target.forPath(house.spark, house.source(table))
        .alias("t")
        .merge(picked.alias("s"), "t.package = s.package")
        .whenMatchedUpdate(
            set={
                "version": f"concat(t.version, '+{number}')",
                "installed_kb": "t.installed_kb + 1",
            }
        )
        .execute()
    )


def _median(timings: tuple[Timing, ...]) -> Timing:
    return Timing(
        statistics.median(timing.seconds for timing in timings),
        statistics.median(timing.processor for timing in timings),
    )

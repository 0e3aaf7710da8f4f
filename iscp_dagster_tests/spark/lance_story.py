"""Full-text and vector windows over Spark Connect, on the driver and in Spark tasks.

A program (`python -m iscp_dagster_tests.spark.lance_story FOLDER`), since a process can hold only
one kind of session; it prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp_dagster.consumers.fulltext import Fulltext
from iscp_dagster.consumers.vector import Vector
from iscp_dagster_tests.consumers.shelf import Keeper, Shelf, same_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER, TASKS = 10_000, 0
"""How many rows at most come to the driver; more are written by Spark tasks."""
INDEXES = (
    (Fulltext, "body", (TASKS, DRIVER)),
    (Vector, "vec", (DRIVER, TASKS)),
)
"""Each index with its column, and who writes its first window and the next."""
EXPECTED = {"fulltext": [True, True], "vector": [True, True]}


def tell(spark: SparkSession, folder: Path) -> dict[str, list[bool]]:
    """Apply a first window and a later one to each index; say whether it was right after each."""
    shelf = Shelf.create(folder / "source")
    keepers = [
        (Keeper.open(spark, shelf, kind, folder / kind.type, (column,)), windows)
        for kind, column, windows in INDEXES
    ]
    seen: dict[str, list[bool]] = {name: [] for name in EXPECTED}
    for number in range(2):
        for keeper, windows in keepers:
            keeper.consumer.driver_rows = windows[number]
            keeper.sync()
            seen[keeper.consumer.type].append(_is_right(keeper, shelf))
        shelf.add(shelf.row(body="amber", vec=[1.0, 2.0, 3.0, 4.0]))
        shelf.update({"body": "'basil'", "vec": "make_array(4.0, 3.0, 2.0, 1.0)"}, "id % 3 = 0")
        shelf.delete("id % 5 = 1")
    for keeper, _ in keepers:
        keeper.consumer.close()
    return seen


def _is_right(keeper: Keeper, shelf: Shelf) -> bool:
    kind, (column,) = keeper.spec.type, keeper.spec.columns
    reader = keeper.reader
    rows = {same_key(row): row[column] for row in shelf.rows() if row[column]}
    if kind == "fulltext":
        held: dict[Any, Any] = {same_key(row): row[column] for row in reader.table().to_pylist()}
        found = {same_key(row) for row in reader.text_search("basil", 1000).to_pylist()}
        return held == rows and found == {k for k, text in rows.items() if "basil" in text.split()}
    near = reader.vector_search([4.0, 3.0, 2.0, 1.0], 1000).to_pylist()
    exact = {key for key, vector in rows.items() if vector == [4.0, 3.0, 2.0, 1.0]}
    nearest = {same_key(row) for row in near if row["_score"] == 0}
    return {same_key(row) for row in near} == set(rows) and nearest == exact


def main() -> None:
    """Tell the story in a process of its own."""
    from iscp_dagster.settings import Settings
    from iscp_dagster.spark.session import get_spark

    spark = get_spark(Settings.from_env())
    print(json.dumps(tell(spark, Path(sys.argv[1]))))
    spark.stop()


if __name__ == "__main__":
    main()

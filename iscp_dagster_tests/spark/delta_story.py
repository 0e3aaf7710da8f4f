"""One small Delta story, told the same way to a local session and over Connect.

As a program (`python -m iscp_dagster_tests.spark.delta_story FOLDER`) it takes its session from the
environment's settings and prints what it saw as JSON: a process can hold only one kind of session.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MERGE = """
    merge into delta.`{folder}` t using {{src}} s on t.id = s.id
    when matched then update set * when not matched then insert *
"""


def tell(spark: SparkSession, folder: str) -> dict[str, Any]:
    """Write a table with change feed, merge into it, and read back what it says."""
    rows = spark.createDataFrame([(1, "a"), (2, None)], "id int, text string")
    rows.write.format("delta").option("delta.enableChangeDataFeed", "true").save(folder)
    changes = spark.createDataFrame([(2, "b"), (3, None)], "id int, text string")
    spark.sql(MERGE.format(folder=folder), src=changes)
    feed = spark.sql("select * from table_changes_by_path({folder}, 1)", folder=folder)
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    same = reader.option("startingVersion", 1).load(folder)
    columns = ["id", "text", "_change_type"]
    return {
        "table": _rows(spark.read.format("delta").load(folder)),
        "feed": _rows(feed.select(*columns)),
        "feed_by_option": _rows(same.select(*columns)),
        "nulls_after_udf": _nulls_after_udf(spark, folder),
        "time_zone": spark.conf.get("spark.sql.session.timeZone"),
    }


def _nulls_after_udf(spark: SparkSession, folder: str) -> list[list[Any]]:
    """What a pandas UDF sees of a null string, and what comes back."""
    from pyspark.sql.functions import pandas_udf

    # Inner functions travel to the workers by value, which need not know this module.
    def identity(texts: pd.Series) -> pd.Series:
        return texts

    def missing(texts: pd.Series) -> pd.Series:
        return texts.isna()

    table = spark.read.format("delta").load(folder)
    udf: Any = pandas_udf  # its overloads know no plain functions
    back, gone = udf(identity, "string")("text"), udf(missing, "boolean")("text")
    return _rows(table.select("id", back.alias("back"), gone.alias("gone")))


def _rows(frame: Any) -> list[list[Any]]:
    return sorted([list(row) for row in frame.collect()], key=repr)


EXPECTED = {
    "table": [[1, "a"], [2, "b"], [3, None]],
    "feed": [
        [2, "b", "update_postimage"],
        [2, None, "update_preimage"],
        [3, None, "insert"],
    ],
    "feed_by_option": [
        [2, "b", "update_postimage"],
        [2, None, "update_preimage"],
        [3, None, "insert"],
    ],
    "nulls_after_udf": [[1, "a", False], [2, "b", False], [3, None, True]],
    "time_zone": "UTC",
}


def main() -> None:
    """Tell the story in a process of its own."""
    from iscp_dagster.settings import Settings
    from iscp_dagster.spark.session import get_spark

    folder, session_id = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    spark = get_spark(Settings.from_env(), session_id=session_id)
    seen = tell(spark, folder)
    if session_id:
        seen["session_id"] = spark.session_id  # pyright: ignore[reportAttributeAccessIssue]
    print(json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    main()

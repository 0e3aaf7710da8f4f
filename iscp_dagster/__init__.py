"""Asynchronous index maintenance for Delta Lake tables, run by Dagster on Spark.

A table's indexes are brought up to date after the commit: incrementally, exactly once, with one
scan of the change feed feeding every index that is due. Start at `iscp_dagster.api` (register and
steer jobs) or `iscp_dagster.definitions` (the Dagster entry).
"""

__version__ = "0.1.0"

"""The rules: pure functions over frozen values; no Dagster, Spark, Delta, clock or I/O."""

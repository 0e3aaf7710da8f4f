"""Every setting, once: read from the environment, checked, with its default.

`ISCP_HOME` is the one folder this package writes to on its own (the log, Dagster's storage, Spark's
scratch); the indexes go to `ISCP_WAREHOUSE`, which may be an object store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from iscp_dagster.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """What a process of this package runs with."""

    home: Path
    """`ISCP_HOME`: the log, Dagster's storage and scratch files; default `.iscp`."""
    log_url: str = field(repr=False)
    """`ISCP_LOG_URL`: where the log lives; default SQLite in the home, or `postgresql://…`."""
    warehouse: str
    """`ISCP_WAREHOUSE`: where index stores are written; default `<home>/warehouse`."""
    spark_remote: str | None = None
    """`SPARK_REMOTE`: a Spark Connect server (`sc://host:port`); default a local session."""
    spark_packages: str | None = None
    """`ISCP_SPARK_PACKAGES`: Maven coordinates of the cluster's own Delta; default the jar from
    the `local` extra."""
    spark_master: str = "local[2]"
    """`ISCP_SPARK_MASTER`: master of the local session."""
    spark_memory: str = "2g"
    """`ISCP_SPARK_MEMORY`: driver memory of the local session."""
    spark_java_options: str = ""
    """`ISCP_SPARK_JAVA_OPTIONS`: more options for the JVM of a session or server of ours;
    `-XX:TieredStopAtLevel=1` makes short work start faster and long work slower."""
    runner_shards: int = 1
    """`ISCP_RUNNER_SHARDS`: how many runner sensors share the tables."""
    max_runs: int = 4
    """`ISCP_MAX_RUNS`: how many iterations may be queued or running at once."""
    keep_windows: int = 1000
    """`ISCP_KEEP_WINDOWS`: how many old windows of a table stay in its partitions."""

    @staticmethod
    def from_env(environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings; a wrong value is named in one line."""
        env = os.environ if environ is None else environ
        home = Path(env.get("ISCP_HOME") or ".iscp").expanduser().absolute()
        return Settings(
            home=home,
            log_url=env.get("ISCP_LOG_URL") or f"sqlite:///{home / 'iscp.db'}",
            warehouse=(env.get("ISCP_WAREHOUSE") or str(home / "warehouse")).rstrip("/"),
            spark_remote=env.get("SPARK_REMOTE") or None,
            spark_packages=env.get("ISCP_SPARK_PACKAGES") or None,
            spark_master=env.get("ISCP_SPARK_MASTER") or _default("spark_master"),
            spark_memory=env.get("ISCP_SPARK_MEMORY") or _default("spark_memory"),
            spark_java_options=env.get("ISCP_SPARK_JAVA_OPTIONS") or "",
            runner_shards=_positive(env, "ISCP_RUNNER_SHARDS", _default("runner_shards")),
            max_runs=_positive(env, "ISCP_MAX_RUNS", _default("max_runs")),
            keep_windows=_positive(env, "ISCP_KEEP_WINDOWS", _default("keep_windows")),
        )


def _default(name: str) -> Any:
    return next(one.default for one in fields(Settings) if one.name == name)


def _positive(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"{name}: {text!r} is not a whole number above 0")
    return int(text)

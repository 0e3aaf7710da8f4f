"""The names under which tables, jobs and runs go in Dagster."""

from __future__ import annotations

import hashlib
import re

from iscp_dagster.rules.model import JobKey, TableKey

TAG_TABLE = "iscp/table"
TAG_JOBS = "iscp/jobs"
TAG_JOB = "iscp.job/"
"""With a job's name behind it: a filter finds the runs of one job whoever else they were for."""
TAG_WINDOW = "iscp/window"
TAG_ATTEMPT = "iscp/attempt"
TAG_ACCOUNT = "iscp/account"
TAG_TRIGGER = "iscp/trigger"
TAG_KIND = "iscp/kind"
TAG_STARTED_BY = "iscp/started_by"
TAG_PRIORITY = "dagster/priority"
TAG_MAX_RUNTIME = "dagster/max_runtime"


def partitions_name(table: TableKey) -> str:
    """Return the name of a table's dynamic partitions: its windows."""
    return f"iscp/{table}"


def group_name(table: TableKey) -> str:
    """Return the asset group of a table and its indexes."""
    return _identifier(f"{table.account}_{table.db}")


def op_name(table: TableKey) -> str:
    """Return the name of the op that runs a table's iterations; Dagster allows no `-` in it."""
    plain = _identifier("_".join(table.asset_path))
    if plain == "_".join(table.asset_path) and "_" not in "".join(table.asset_path):
        return f"iscp_{plain}"
    # Different tables may read the same once joined: a short hash keeps them apart.
    return f"iscp_{plain}_{_hash(table)}"


def observe_name(table: TableKey) -> str:
    """Return the name of the op that looks up a table's newest version."""
    return f"{op_name(table)}_observe"


def output_name(job: JobKey) -> str:
    """Return the name of a job's output; `a-b` and `a_b` are different jobs."""
    plain = _identifier(job.name)
    return f"iscp_{plain}" if plain == job.name else f"iscp_{plain}_{_hash(job)}"


def kind_name(text: str) -> str:
    """Return a consumer's type as Dagster allows it for a kind."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:63] or "_"


def _hash(key: TableKey | JobKey) -> str:
    return hashlib.blake2b(str(key).encode(), digest_size=3).hexdigest()


def _identifier(text: str) -> str:
    return re.sub(r"\W", "_", text)

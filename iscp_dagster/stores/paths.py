"""Where an index lives: one folder per generation, so that an old run can't reach a new index."""

from __future__ import annotations

from iscp_dagster.rules.model import JobKey


def index_uri(warehouse: str, key: JobKey, job_id: int) -> str:
    """Return `<warehouse>/_iscp/<account>/<db>/<table>/<job>/<job_id>`.

    Every part of a key is a checked name, so none can climb out of the warehouse.
    """
    return "/".join((warehouse.rstrip("/"), "_iscp", *key.asset_path, str(job_id)))

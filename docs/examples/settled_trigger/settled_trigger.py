"""A trigger that waits until a table has come to rest.

Somebody who loads a table in a hundred commits wants one iteration afterwards, not a dozen on the
way. But nobody wants to wait for ever: after ten minutes the job goes, rest or no rest.
"""

from __future__ import annotations

from datetime import timedelta

from iscp_dagster.rules.model import Job
from iscp_dagster.rules.triggers import Due, TableView, Waiting

REST = timedelta(seconds=30)
PATIENCE = timedelta(minutes=10)


def settled(job: Job, table: TableView) -> Due | Waiting:
    """Due once the newest commit is 30 s old, or the oldest one not indexed yet 10 min."""
    at_rest = table.head.time + REST
    at_last = table.changes.waiting_since(job.watermark) + PATIENCE
    if table.now < min(at_rest, at_last):
        return Waiting("waits until the table has come to rest", until=min(at_rest, at_last))
    reason = "came to rest" if at_rest <= table.now else "waited long enough"
    return Due(table.head, f"changed; {reason}", share=True)

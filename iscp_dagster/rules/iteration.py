"""An iteration as planned: one table, one window, one or more jobs, one run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from iscp_dagster.rules.model import IterationKind, TableKey, Window


@dataclass(frozen=True, slots=True)
class Iteration:
    """One table, one window, one or more jobs: one run."""

    table: TableKey
    window: Window
    job_names: tuple[str, ...]
    job_ids: tuple[int, ...]
    lsns: tuple[int, ...]
    """The compare-and-set tokens of the jobs as planned, in the order of `job_ids`."""
    kind: IterationKind
    attempt: int
    """How many attempts in a row have failed before this one; 0 is the first attempt."""
    priority: int
    trigger: str
    waiting_since: datetime
    """Since when the oldest change waits: the iteration's lag."""
    reason: str

    @property
    def run_key(self) -> str:
        """What a run can be had for only once: table, window, jobs and attempt.

        A job is named with its token: after a cancel or a repair, window and attempt may be the
        same as before, and the old run has spent its key.
        """
        jobs = " ".join(f"{i}.{lsn}" for i, lsn in zip(self.job_ids, self.lsns, strict=True))
        digest = hashlib.blake2b(jobs.encode(), digest_size=8).hexdigest()
        return f"{self.table}:{self.window.partition_key}:{digest}:{self.attempt}"

    @property
    def start_order(self) -> tuple[int, datetime, TableKey, tuple[str, ...], tuple[int, ...]]:
        """Sorts by priority, then the longest lag, then the key."""
        return (-self.priority, self.waiting_since, self.table, self.job_names, self.job_ids)

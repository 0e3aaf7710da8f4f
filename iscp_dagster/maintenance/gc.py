"""Garbage: what dropped jobs, old iterations and old windows leave behind."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from iscp_dagster.consumers.base import IndexPlace
from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.errors import IscpError
from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import Job
from iscp_dagster.settings import Settings
from iscp_dagster.stores.paths import index_uri

if TYPE_CHECKING:
    from dagster import DagsterInstance

KEEP_DROPPED = timedelta(days=1)
KEEP_ITERATIONS = timedelta(days=30)
KEEP_ITERATIONS_PER_TABLE = 100

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a collection removed."""

    jobs: int = 0
    tables: int = 0
    iterations: int = 0
    windows: int = 0
    kept: tuple[str, ...] = ()
    """What could not be removed, and why; the next collection tries again."""

    def __str__(self) -> str:
        removed = (
            f"removed {self.jobs} dropped indexes, {self.tables} dropped tables, "
            f"{self.iterations} old iterations, {self.windows} old windows"
        )
        return removed + "".join(f"\nkept {one}" for one in self.kept)


def collect_garbage(
    log: JobLog, settings: Settings, now: datetime, instance: DagsterInstance | None = None
) -> GcReport:
    """Remove what nobody needs any more: files first, then the rows that tell where they are."""
    kept: list[str] = []
    jobs = 0
    for row in log.jobs.dropped_before(now - KEEP_DROPPED):
        if not isinstance(row, Job):
            kept.append(f"{row.key} (generation {row.job_id}): {row.reason}")
            continue
        problem = _try(lambda row=row: _remove_index(row, settings))
        if problem:
            kept.append(f"{row.key} (generation {row.job_id}): {problem}")
        else:
            jobs += log.jobs.forget(row.job_id)
    iterations = log.iterations.delete_ended_before(
        now - KEEP_ITERATIONS, KEEP_ITERATIONS_PER_TABLE
    )
    tables = log.tables.forget_dropped(now - KEEP_DROPPED)
    windows = 0
    if instance is not None:
        from iscp_dagster.orchestration.partitions import prune_windows

        windows = prune_windows(log, instance, settings.keep_windows)
    return GcReport(jobs, tables, iterations, windows, tuple(kept))


def _remove_index(job: Job, settings: Settings) -> None:
    uri = index_uri(settings.warehouse, job.key, job.job_id)
    get_consumer_class(job.spec.type)(IndexPlace(job.key, job.job_id, uri)).drop()


def _try(action: Callable[[], None]) -> str | None:
    """Do it; return the reason when it did not work."""
    try:
        action()
    except (IscpError, OSError) as error:
        _logger.warning("not removed: %s", error)
        return " ".join(str(error).split())
    return None

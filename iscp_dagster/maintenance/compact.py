"""All live indexes put in order, one after the other: small files, segments, old versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iscp_dagster.errors import IndexBuilding, IscpError, UsageError
from iscp_dagster.joblog import JobLog
from iscp_dagster.maintenance.optimize import OptimizeReport, optimize_index
from iscp_dagster.rules.model import Job
from iscp_dagster.settings import Settings


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What was put in order, and what could not be."""

    done: tuple[OptimizeReport, ...] = ()
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.done)} indexes in order"]
        return "\n".join([*lines, *(f"not in order: {one}" for one in self.failed)])


def compact_indexes(
    log: JobLog, settings: Settings, tell: Callable[[str], None] = lambda line: None
) -> CompactReport:
    """Put every index in order; one that can't be leaves the others be.

    Args:
        log: Where the jobs are.
        settings: Where their indexes are.
        tell: Called with a line for each index that is done.
    """
    done: list[OptimizeReport] = []
    failed: list[str] = []
    for job in log.jobs.list():
        if not isinstance(job, Job) or job.job_id != job.live_job_id:
            continue
        try:
            done.append(optimize_index(job, settings.warehouse))
        except (IndexBuilding, UsageError):
            continue  # nothing to put in order yet, or not by us
        except IscpError as error:
            failed.append(str(error))
        else:
            tell(str(done[-1]))
    return CompactReport(tuple(done), tuple(failed))

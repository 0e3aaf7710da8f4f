"""What an iteration is asked to do, with what, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from iscp_dagster.consumers.base import ConsumerResult
from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import IterationKind, Job, JobKey, Table, TableKey, Window
from iscp_dagster.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class IterationRequest:
    """One table, one window, the jobs that take part, and the run that asks."""

    table: TableKey
    window: Window
    job_names: tuple[str, ...]
    run_id: str


@dataclass(frozen=True, slots=True)
class Tools:
    """What an iteration works with."""

    log: JobLog
    settings: Settings
    spark: Callable[[], SparkSession]
    """Starts the session when it is first called: an iteration with nothing to do starts none."""
    is_alive: Callable[[str], bool]
    """Whether Dagster still counts a run as queued or running."""
    silence: Callable[[str], None]
    """Stops what a dead run may have left running in Spark."""
    now: Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class JobReport:
    """What an iteration did for one job."""

    key: JobKey
    job_id: int
    result: ConsumerResult | None = None
    error: BaseException | None = None
    job: Job | None = None
    """The job as recorded afterwards; None when nothing was written to the log."""
    uri: str = ""
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IterationReport:
    """What an iteration did."""

    table: Table
    window: Window
    kind: IterationKind
    jobs: tuple[JobReport, ...]
    rows_scanned: int = 0
    bytes_scanned: int | None = None
    """Of the files that the scan opened; None where the table's log no longer tells."""
    scan_seconds: float = 0.0
    seconds: float = 0.0

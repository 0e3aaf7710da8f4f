"""Writing idle watermarks to the log, so that a restart does not start from long ago.

An index whose table does not change moves its watermark in the runner's memory only. Once an hour
the log follows: the watermark and nothing else, and only for jobs that nobody holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.runner import Runner
from iscp_dagster.rules.model import InFlight, JobState


def flush_watermarks(log: JobLog, in_flight: Sequence[InFlight], now: datetime) -> int:
    """Find out what has not changed and write it down; returns how many jobs moved."""
    runner = Runner(log)
    runner.tick(in_flight, now)
    idle = [
        (job, {"watermark": watermark})
        for job, watermark in runner.moved()
        if job.state is JobState.COMPLETED
    ]
    written = log.jobs.compare_and_set_many(idle) if idle else []
    return sum(job is not None for job in written)

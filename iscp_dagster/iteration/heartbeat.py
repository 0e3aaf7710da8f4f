"""Being alive, and noticing when a claim is lost.

While an iteration runs, a thread writes its heartbeat to the log, and reads back the rows of its
jobs: one that was dropped, or whose lsn moved (`iscp alter --interrupt`), is no longer this run's
to write; its consumer is stopped at once, the others go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from iscp_dagster.errors import IscpError
from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import Job

HEARTBEAT_SECONDS = 2.0

_logger = logging.getLogger(__name__)


@contextmanager
def beating(
    log: JobLog, iteration_id: int, jobs: Sequence[Job], on_lost: Callable[[Job], None]
) -> Iterator[None]:
    """Beat until the block ends; `on_lost` is called once for each job that is lost meanwhile."""
    ended = threading.Event()
    beat = threading.Thread(
        target=_beat, args=(log, iteration_id, jobs, on_lost, ended), name="iscp-heartbeat"
    )
    beat.daemon = True
    beat.start()
    try:
        yield
    finally:
        ended.set()
        beat.join()


def _beat(
    log: JobLog,
    iteration_id: int,
    jobs: Sequence[Job],
    on_lost: Callable[[Job], None],
    ended: threading.Event,
) -> None:
    held = {job.job_id: job for job in jobs}
    while not ended.wait(HEARTBEAT_SECONDS):
        try:
            log.iterations.heartbeat(iteration_id, datetime.now(UTC))
            lsns = log.jobs.lsns(held)
        except IscpError as error:
            # The log may be away for a minute; the claim is checked again before anything is said.
            _logger.warning("no heartbeat: %s", error)
            continue
        for job_id in [job_id for job_id, job in held.items() if lsns.get(job_id) != job.lsn]:
            on_lost(held.pop(job_id))

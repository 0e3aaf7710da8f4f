"""When a job tries again: 5 s doubling to 5 min after failures, a wait of its own after a cancel.

The *jitter* shortens each delay by up to a fifth, by a hash of job and attempt: jobs that failed
together don't come back together, and the same failure always gives the same time.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

FIRST_DELAY = timedelta(seconds=5)
LONGEST_DELAY = timedelta(minutes=5)
JITTER = 0.2
CANCEL_WAIT = timedelta(minutes=1)


def delay(job_id: int, attempt: int) -> timedelta:
    """Return how long to wait after the failure that made `attempt` failures in a row."""
    doublings = min(max(attempt - 1, 0), 30)
    full = min(FIRST_DELAY * 2**doublings, LONGEST_DELAY)
    return full * (1 - JITTER * _fraction(job_id, attempt))


def next_attempt(job_id: int, attempt: int, now: datetime) -> datetime:
    """Return when to try again after `attempt` failures in a row."""
    return now + delay(job_id, attempt)


def after_cancel(now: datetime) -> datetime:
    """Return when a canceled job may start again; whoever canceled it had a reason."""
    return now + CANCEL_WAIT


def _fraction(job_id: int, attempt: int) -> float:
    digest = hashlib.blake2b(f"{job_id}/{attempt}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32

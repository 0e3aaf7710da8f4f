"""What an iteration's end means for one of its jobs.

*Advance*: the watermark moves to the window's end. *Hold*: a temporary error; the watermark stays
exactly where it was, so that the next window starts there. *Stop*: a permanent error; nothing
more happens until `iscp repair`. *Cancel*: somebody ended the run; no failure, no attempt counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from iscp_dagster.errors import PERMANENT_FROM, IscpError, RunLost
from iscp_dagster.rules.backoff import after_cancel, next_attempt
from iscp_dagster.rules.model import TS, Job, JobState, Stage, Window

MESSAGE_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The columns of a job that the end of its iteration writes; all others stay."""

    state: JobState
    watermark: TS
    stage: Stage
    attempt: int
    next_attempt_at: datetime | None
    error_code: int
    error_msg: str


def outcome_of(job: Job, window: Window, error: BaseException | None, now: datetime) -> Outcome:
    """Decide for one job of an iteration; `error` is what its consumer raised, if anything."""
    if error is None:
        return advance(job, window)
    if is_cancel(error):
        return canceled(job, now)
    code, _ = classify(error)
    return stop(job, error) if code >= PERMANENT_FROM else hold(job, error, now)


def advance(job: Job, window: Window) -> Outcome:
    """The window is in the index: the job stands at its end, or where it stood if that is later."""
    reached = window.end if job.watermark < window.end else job.watermark
    return Outcome(JobState.COMPLETED, reached, Stage.TAIL, 0, None, 0, "")


def hold(job: Job, error: BaseException, now: datetime) -> Outcome:
    """The window failed for now: same watermark, one more attempt, after a wait."""
    code, message = classify(error)
    attempt = job.attempt + 1
    again = next_attempt(job.job_id, attempt, now)
    return Outcome(JobState.COMPLETED, job.watermark, job.stage, attempt, again, code, message)


def stop(job: Job, error: BaseException) -> Outcome:
    """The window failed for good: same watermark, state error, until it is repaired."""
    code, message = classify(error)
    return Outcome(JobState.ERROR, job.watermark, job.stage, job.attempt, None, code, message)


def canceled(job: Job, now: datetime) -> Outcome:
    """Somebody ended the run: wait, then start again; what was known of errors stays."""
    return Outcome(
        JobState.CANCELED,
        job.watermark,
        job.stage,
        job.attempt,
        after_cancel(now),
        job.status.error_code,
        job.status.error_msg,
    )


def lost(job: Job, now: datetime) -> Outcome:
    """The job's run is gone without a word: a failed attempt like any other."""
    return hold(job, RunLost("the run ended without a word"), now)


def is_cancel(error: BaseException) -> bool:
    """Whether `error` asks to end rather than tells of a failure (Ctrl-C, exit, interrupt)."""
    return not isinstance(error, Exception)


def classify(error: BaseException) -> tuple[int, str]:
    """Return an error's code and its message on one bounded line; an unknown one is temporary."""
    code = error.code if isinstance(error, IscpError) else IscpError.code
    text = " ".join(str(error).split())
    if not isinstance(error, IscpError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if len(text) > MESSAGE_LIMIT:
        text = text[: MESSAGE_LIMIT - 1] + "…"
    return code, text

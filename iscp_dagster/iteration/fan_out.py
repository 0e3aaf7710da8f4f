"""One piece of work, many consumers, side by side.

Each consumer runs on a thread of its own under a Spark *tag* of its own, so that one can be stopped
without the others. One that raises, times out or is stopped leaves at once with its error; the
others neither wait for it nor see it. A stopped consumer that does not come back is abandoned: what
it may still commit is fenced by the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp_dagster.consumers.base import Consumer, ConsumerResult
from iscp_dagster.errors import ConsumerTimeout
from iscp_dagster.rules.model import Job, Window
from iscp_dagster.spark.cancel import interrupt, tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GRACE_SECONDS = 5.0
"""How long a stopped consumer may take to come back before it is abandoned."""
_AGAIN_SECONDS = 0.5
"""Spark misses an interrupt that comes between two of its jobs: a stopped one gets more of them."""


@dataclass(frozen=True, slots=True)
class Member:
    """A job that takes part in an iteration, with the consumer that applies it."""

    job: Job
    consumer: Consumer
    window: Window
    """From where this index stands: what the shared window starts with may have changed nothing."""


@dataclass(frozen=True, slots=True)
class MemberResult:
    """What became of one member: an error, or what its work returned."""

    job: Job
    result: ConsumerResult | None
    error: BaseException | None
    seconds: float


Work = Callable[[Member], ConsumerResult | None]


class FanOut:
    """Runs the members of one iteration; `stop` may be called from any thread."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._sessions: dict[int, SparkSession] = {}
        self._changed = threading.Condition()
        self._started: dict[int, float] = {}
        self._stopped: dict[int, tuple[BaseException, float]] = {}
        self._done: dict[int, MemberResult] = {}

    def run(self, spark: SparkSession, members: Sequence[Member], work: Work) -> list[MemberResult]:
        """Do the work with every member and wait until each is done, stopped or late."""
        with self._changed:
            for member in members:
                # Over Connect a tag belongs to a session, and consumers commit with their own.
                self._sessions[member.job.job_id] = member.consumer.session or spark
                self._started[member.job.job_id] = time.monotonic()
        for member in members:
            threading.Thread(
                target=self._do,
                args=(member, work),
                name=f"iscp-{member.job.key.name}",
                daemon=True,
            ).start()
        with self._changed:
            while not self._all_done(members):
                self._end_late(members)
                if not self._all_done(members):
                    self._changed.wait(self._patience(members))
            results = [self._done[member.job.job_id] for member in members]
            # A member that is done with this work may yet be stopped before its next.
            self._done.clear()
        return results

    def stop(self, job: Job, error: BaseException) -> None:
        """End one member with `error`, in Spark too; the others go on."""
        with self._changed:
            if job.job_id in self._done or job.job_id in self._stopped:
                return
            self._stopped[job.job_id] = (error, time.monotonic())
            session = self._sessions.get(job.job_id)
            self._changed.notify_all()
        if session is not None:
            interrupt(session, self.tag(job))

    def stop_all(self, jobs: Sequence[Job], error: BaseException) -> None:
        """End every member with `error`."""
        for job in jobs:
            self.stop(job, error)

    def tag(self, job: Job) -> str:
        """Return the Spark tag of a member's work."""
        return f"iscp-{self._run_id}-{job.job_id}"

    def _do(self, member: Member, work: Work) -> None:
        started = time.monotonic()
        result, error = None, None
        try:
            with tagged(self._sessions[member.job.job_id], self.tag(member.job)):
                self._raise_if_stopped(member.job)
                result = work(member)
        except Exception as raised:  # noqa: BLE001 - whatever a consumer raises is its own result
            error = raised
        with self._changed:
            if member.job.job_id in self._done:
                return
            if error is not None and member.job.job_id in self._stopped:
                # Interrupted work fails in many ways; the reason it was stopped is the one to tell.
                error = self._stopped[member.job.job_id][0]
            seconds = time.monotonic() - started
            self._done[member.job.job_id] = MemberResult(member.job, result, error, seconds)
            self._changed.notify_all()

    def _all_done(self, members: Sequence[Member]) -> bool:
        return all(member.job.job_id in self._done for member in members)

    def _raise_if_stopped(self, job: Job) -> None:
        """Leave work alone that was stopped before it began: nothing was there to interrupt."""
        with self._changed:
            if job.job_id in self._stopped:
                raise InterruptedError("stopped")

    def _end_late(self, members: Sequence[Member]) -> None:
        """Stop who is past its timeout, and give up on who was stopped and does not come back."""
        now = time.monotonic()
        for member in members:
            job = member.job
            if job.job_id in self._done:
                continue
            stopped = self._stopped.get(job.job_id)
            if stopped is None and now - self._started[job.job_id] >= _timeout(job):
                error = ConsumerTimeout(
                    f"{job.key} did not finish its window within {job.spec.timeout}"
                )
                stopped = self._stopped[job.job_id] = (error, now)
            if stopped is None:
                continue
            interrupt(self._sessions[job.job_id], self.tag(job))
            if now - stopped[1] >= GRACE_SECONDS:
                seconds = now - self._started[job.job_id]
                self._done[job.job_id] = MemberResult(job, None, stopped[0], seconds)

    def _patience(self, members: Sequence[Member]) -> float:
        """Return how long there is nothing to do but wait."""
        now = time.monotonic()
        ends = []
        for member in members:
            job = member.job
            if job.job_id in self._done:
                continue
            stopped = self._stopped.get(job.job_id)
            if stopped is not None:
                ends.append(min(now + _AGAIN_SECONDS, stopped[1] + GRACE_SECONDS))
            else:
                ends.append(self._started[job.job_id] + _timeout(job))
        return max(0.01, min(ends) - now) if ends else 0.01


def _timeout(job: Job) -> float:
    return job.spec.timeout.total_seconds()

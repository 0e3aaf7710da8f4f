"""Claiming: which of the asked jobs this run may bring from the window's start to its end.

The index store's own watermark is the truth; the log follows it and is repaired here. A job whose
store stands at the window's end already has nothing to do and still counts. A job whose store does
not stand at the window's start is refused: applying the window would skip or repeat versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from iscp_dagster.consumers.base import Consumer, IndexPlace
from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.errors import (
    ClaimLost,
    IndexBehindWindow,
    IscpError,
    JobBusy,
    JobInError,
    TemporaryError,
    UnknownJob,
    WindowRefused,
)
from iscp_dagster.iteration.request import IterationRequest, Tools
from iscp_dagster.rules.model import (
    TS,
    IterationKind,
    Job,
    JobKey,
    JobState,
    Stage,
    Table,
    Window,
)
from iscp_dagster.rules.outcome import classify, outcome_of
from iscp_dagster.sources.delta_log import open_log
from iscp_dagster.stores.paths import index_uri

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that this run holds."""

    job: Job
    consumer: Consumer
    stands_at: TS
    """Where the index stood when it was claimed, as its store says."""
    done: bool
    """The index holds the window already."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The jobs of an iteration: those held, and those refused with the reason."""

    table: Table
    window: Window
    iteration_id: int
    held: tuple[Claimed, ...]
    refused: tuple[tuple[JobKey, IscpError], ...]

    @property
    def jobs(self) -> list[Job]:
        """The jobs that are held."""
        return [claimed.job for claimed in self.held]


def claim_jobs(request: IterationRequest, tools: Tools) -> Claim:
    """Take the jobs that can go through the window; the others are refused, each for its reason.

    Raises:
        IscpError: None could be had; the first one's reason.
    """
    table = tools.log.tables.get(request.table)
    _check_end(table, request.window)
    held: list[Claimed] = []
    refused: list[tuple[JobKey, IscpError]] = []
    for name in request.job_names:
        try:
            held.append(_claim_by_name(name, table, request, tools))
        except IscpError as error:
            refused.append((request.table.job(name), error))
    if not held:
        raise refused[0][1]
    iteration_id = tools.log.iterations.start(
        table,
        request.window,
        [claimed.job.key.name for claimed in held],
        kind=_kind(request.window, held),
        run_id=request.run_id,
        attempt=max(claimed.job.attempt for claimed in held),
        now=tools.now(),
    )
    return Claim(table, request.window, iteration_id, tuple(held), tuple(refused))


def _claim_by_name(name: str, table: Table, request: IterationRequest, tools: Tools) -> Claimed:
    """Claim a job as it is now; the runner may say pending, or flush, at the same moment."""
    tries = _TRIES
    while True:
        job = _building_or_live(tools.log.jobs.list(table=request.table)).get(name)
        if job is None:
            raise UnknownJob(f"job {request.table.job(name)} is not in the log")
        try:
            return _claim(job, table, request, tools)
        except ClaimLost:
            tries -= 1
            if not tries:
                raise


def _claim(job: Job, table: Table, request: IterationRequest, tools: Tools) -> Claimed:
    if job.state is JobState.ERROR:
        raise JobInError(
            f"{job.key} stopped at error {job.status.error_code}: {job.status.error_msg}"
        )
    holder = job.status.run_id
    if (
        job.state is JobState.RUNNING
        and holder not in ("", request.run_id)
        and tools.is_alive(holder)
    ):
        raise JobBusy(f"{job.key} is held by run {holder}")
    if job.status.start_at is not None and job.status.end_at is None and holder != request.run_id:
        # The last run never told its end: over Connect its work may outlive it for a while.
        tools.silence(holder)
    consumer, stands_at = _open_index(job, request, tools)
    done = not stands_at.is_zero and request.window.end <= stands_at
    if not done:
        try:
            _check_start(job.key, table, stands_at, request.window)
        except IscpError:
            _set_right(job, stands_at, tools)
            raise
    claimed = tools.log.jobs.compare_and_set(
        job,
        state=JobState.RUNNING,
        watermark=_followed(job.watermark, stands_at),
        status=replace(
            job.status,
            from_ts=request.window.start,
            to_ts=request.window.end,
            start_at=tools.now(),
            end_at=None,
            run_id=request.run_id,
        ),
    )
    return Claimed(claimed, consumer, stands_at, done)


def _open_index(job: Job, request: IterationRequest, tools: Tools) -> tuple[Consumer, TS]:
    """Return a job's index and where it stands; one that can't be read is that job's failure."""
    try:
        uri = index_uri(tools.settings.warehouse, job.key, job.job_id)
        consumer = get_consumer_class(job.spec.type)(IndexPlace(job.key, job.job_id, uri))
        return consumer, consumer.watermark()
    except Exception as raised:
        code, message = classify(raised)
        outcome = outcome_of(job, request.window, raised, tools.now())
        status = replace(job.status, error_code=code, error_msg=message, run_id=request.run_id)
        changes = {
            "state": outcome.state,
            "attempt": outcome.attempt,
            "next_attempt_at": outcome.next_attempt_at,
            "status": replace(status, end_at=tools.now()),
        }
        tools.log.jobs.compare_and_set_many([(job, changes)])
        if isinstance(raised, IscpError):
            raise
        raise TemporaryError(f"the index {job.key} can't be read: {message}") from raised


def _followed(logged: TS, stands_at: TS) -> TS:
    """Where the log has to say the index is: where its store says, with the time it is known by."""
    return logged if logged.version == stands_at.version else stands_at


def _set_right(job: Job, stands_at: TS, tools: Tools) -> None:
    """Let the log follow a store that stands elsewhere: the next plan starts from there.

    A store that lost everything stands at 0, and the index is built anew.
    """
    if job.watermark.version == stands_at.version:
        return
    stage = Stage.INIT if stands_at.is_zero else job.stage
    # Lost to somebody who moved the job meanwhile: then it is theirs.
    changes = {"watermark": stands_at, "stage": stage, "state": JobState.COMPLETED}
    tools.log.jobs.compare_and_set_many([(job, changes)])


def _check_end(table: Table, window: Window) -> None:
    """Refuse a window that ends where the table has never been; one that is gone says so later."""
    end, log = window.end, open_log(table.uri, {})
    if end.is_zero:
        raise WindowRefused("the window 0_0 holds nothing")
    if log.has(end.version) or log.versions(end.version):
        return
    newest = log.versions(0)
    if newest:
        raise WindowRefused(
            f"window ends at {_place(end)}, {table.key} stands at v{newest[-1]}",
            cure="choose a window of the table's history, or run `iscp sync`",
        )


def _check_start(job: JobKey, table: Table, stands_at: TS, window: Window) -> None:
    """Refuse a window that does not start where the index stands, as far as data goes."""
    start = window.start
    if start.version == stands_at.version or _same_data(table, start, stands_at):
        return
    where = f"window starts at {_place(start)}, the index {job} stands at {_place(stands_at)}"
    if stands_at < start:
        raise IndexBehindWindow(where)
    raise WindowRefused(f"{where} already", cure="the next window starts there")


def _same_data(table: Table, one: TS, other: TS) -> bool:
    """Whether no commit between two points changed data, so that both stand for the same rows."""
    first, last = sorted((one.version, other.version))
    if first < 0:
        return False
    commits = open_log(table.uri, {}).read(first + 1, last - first, None)
    return len(commits) == last - first and not any(read.commit.data_change for read in commits)


def _kind(window: Window, held: Sequence[Claimed]) -> IterationKind:
    if all(claimed.done for claimed in held):
        return IterationKind.NO_OP
    return IterationKind.SNAPSHOT if window.start.is_zero else IterationKind.TAIL


def _building_or_live(rows: Sequence[object]) -> dict[str, Job]:
    """Return by name the generation that iterations write: the newest one."""
    jobs = [row for row in rows if isinstance(row, Job)]
    return {job.key.name: job for job in sorted(jobs, key=lambda job: job.job_id)}


def _place(ts: TS) -> str:
    return "0" if ts.is_zero else f"v{ts.version}"

"""Recording: what each consumer did goes to the log, each job under its own token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from iscp_dagster.errors import ClaimLost
from iscp_dagster.iteration.claim import Claim
from iscp_dagster.iteration.fan_out import MemberResult
from iscp_dagster.iteration.request import IterationReport, JobReport, Tools
from iscp_dagster.joblog.iterations import ConsumerRecord
from iscp_dagster.rules.model import Job, JobState, Window
from iscp_dagster.rules.outcome import Outcome, canceled, classify, is_cancel, outcome_of
from iscp_dagster.stores.paths import index_uri


def record(
    claim: Claim, report: IterationReport, results: Sequence[MemberResult], tools: Tools
) -> tuple[JobReport, ...]:
    """Write every job's outcome and close the iteration; returns what there is to tell of each."""
    now = tools.now()
    written = tools.log.jobs.compare_and_set_many(
        [(member.job, _columns(member, claim.window, now)) for member in results]
    )
    interrupted = [member for member, job in zip(results, written, strict=True) if job is None]
    if interrupted:
        _give_back(claim, interrupted, tools)
    tools.log.iterations.finish(
        claim.iteration_id,
        now=now,
        kind=report.kind,
        rows_scanned=report.rows_scanned,
        bytes_scanned=report.bytes_scanned,
        seconds=report.seconds,
        consumers=[_consumer_record(member) for member in results],
    )
    reports = []
    for member, job in zip(results, written, strict=True):
        error = member.error
        if job is None and error is None:
            # The data is committed and the store says so: the log is repaired at the next claim.
            error = ClaimLost(f"{member.job.key} was dropped or interrupted while it was applied")
        reports.append(
            JobReport(
                key=member.job.key,
                job_id=member.job.job_id,
                result=member.result if error is None else None,
                error=error,
                job=job,
                uri=index_uri(tools.settings.warehouse, member.job.key, member.job.job_id),
            )
        )
    refused = [JobReport(key, 0, error=error) for key, error in claim.refused]
    return (*reports, *refused)


def _give_back(claim: Claim, members: Sequence[MemberResult], tools: Tools) -> None:
    """Free jobs that a user interrupted while this run held them: no failure.

    The watermark stays, unless the window was in the index by then. A job that was dropped, or is
    somebody else's by now, is not touched.
    """
    ours = {member.job.job_id: member for member in members}
    now = tools.now()
    writes = []
    for job in tools.log.jobs.list(table=claim.table.key, state=JobState.RUNNING):
        member = ours.get(job.job_id)
        if member is None or not isinstance(job, Job):
            continue
        if job.status.run_id != member.job.status.run_id:
            continue
        if member.result is not None:
            columns = _columns(replace(member, job=job), claim.window, now)
        else:
            columns = _outcome_columns(job, canceled(job, now), now)
        writes.append((job, columns))
    tools.log.jobs.compare_and_set_many(writes)


def _columns(member: MemberResult, window: Window, now: datetime) -> dict[str, Any]:
    reached = window if member.result is None else Window(window.start, member.result.watermark)
    return _outcome_columns(member.job, outcome_of(member.job, reached, member.error, now), now)


def _outcome_columns(job: Job, outcome: Outcome, now: datetime) -> dict[str, Any]:
    return {
        "state": outcome.state,
        "watermark": outcome.watermark,
        "stage": outcome.stage,
        "attempt": outcome.attempt,
        "next_attempt_at": outcome.next_attempt_at,
        "status": replace(
            job.status,
            end_at=now,
            error_code=outcome.error_code,
            error_msg=outcome.error_msg,
        ),
    }


def _consumer_record(member: MemberResult) -> ConsumerRecord:
    result = member.result
    code, message = (0, "") if member.error is None else classify(member.error)
    if member.error is not None and is_cancel(member.error):
        message = "canceled"
    return ConsumerRecord(
        job_name=member.job.key.name,
        job_id=member.job.job_id,
        rows_upserted=result.rows_upserted if result else 0,
        rows_deleted=result.rows_deleted if result else 0,
        rows_skipped=result.rows_skipped if result else 0,
        seconds=member.seconds,
        error_code=code,
        error_msg=message,
    )

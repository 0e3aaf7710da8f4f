"""One iteration, in the order of the flow: claim -> scan once -> consume -> commit -> record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iscp_dagster.consumers.base import ConsumerResult
from iscp_dagster.errors import (
    ClaimLost,
    IscpError,
    IterationCanceled,
    SourceTableMissing,
    SourceTableReplaced,
    UnknownDeltaTable,
)
from iscp_dagster.iteration.claim import Claim, Claimed, claim_jobs
from iscp_dagster.iteration.fan_out import FanOut, Member, MemberResult
from iscp_dagster.iteration.faults import reach
from iscp_dagster.iteration.heartbeat import beating
from iscp_dagster.iteration.record import record
from iscp_dagster.iteration.request import IterationReport, IterationRequest, Tools
from iscp_dagster.rules.model import IterationKind, Job, Table, Window
from iscp_dagster.sources.changes import ChangeKind, Changes, retrieve_or_snapshot
from iscp_dagster.sources.facts import TableFacts, bytes_to_read, read_facts
from iscp_dagster.spark.cancel import interrupt, tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class _Scan:
    """What was read, once for all."""

    kind: IterationKind = IterationKind.TAIL
    rows: int = 0
    bytes: int | None = 0
    seconds: float = 0.0


class IterationRun:
    """An iteration under way; `cancel` may be called from another thread at any time."""

    def __init__(self, request: IterationRequest, tools: Tools) -> None:
        self._request = request
        self._tools = tools
        self._fan_out = FanOut(request.run_id)
        self._canceled = False
        self._jobs: Sequence[Job] = ()
        self._spark: SparkSession | None = None

    def run(self) -> IterationReport:
        """Bring the jobs from the window's start to its end.

        Raises:
            IscpError: No job could be claimed.
            IterationCanceled: Somebody ended it; the jobs are given back.
        """
        started = time.monotonic()
        claim = claim_jobs(self._request, self._tools)
        self._jobs = claim.jobs
        reach("after_claim")
        with beating(self._tools.log, claim.iteration_id, claim.jobs, self._lost):
            scan, results = self._consume(claim)
        report = IterationReport(
            table=claim.table,
            window=claim.window,
            kind=scan.kind,
            jobs=(),
            rows_scanned=scan.rows,
            bytes_scanned=scan.bytes,
            scan_seconds=scan.seconds,
            seconds=time.monotonic() - started,
        )
        reach("before_log")
        report = replace(report, jobs=record(claim, report, results, self._tools))
        reach("after_log")
        if self._canceled:
            raise IterationCanceled
        return report

    def cancel(self) -> None:
        """End the iteration: Spark stops in seconds, watermarks stay, nothing counts as failed."""
        self._canceled = True
        self._fan_out.stop_all(self._jobs, IterationCanceled())
        spark = self._spark
        if spark is not None:
            interrupt(spark, self._tag)

    @property
    def _tag(self) -> str:
        return f"iscp-{self._request.run_id}"

    def _lost(self, job: Job) -> None:
        self._fan_out.stop(
            job, ClaimLost(f"{job.key} (generation {job.job_id}) was dropped or interrupted")
        )

    def _consume(self, claim: Claim) -> tuple[_Scan, list[MemberResult]]:
        """Scan once and fan out; an error of the scan is every member's error."""
        done = [_already_there(claimed) for claimed in claim.held if claimed.done]
        waiting = [claimed for claimed in claim.held if not claimed.done]
        if not waiting:
            return _Scan(IterationKind.NO_OP), done
        started = time.monotonic()
        try:
            scan, results = self._scan_and_fan_out(claim, waiting)
        except Exception as raised:  # noqa: BLE001 - whatever ends the scan is every member's result
            error = IterationCanceled() if self._canceled else raised
            seconds = time.monotonic() - started
            failed = [MemberResult(one.job, None, error, seconds) for one in waiting]
            return _Scan(seconds=seconds), done + failed
        return scan, done + results

    def _scan_and_fan_out(
        self, claim: Claim, waiting: Sequence[Claimed]
    ) -> tuple[_Scan, list[MemberResult]]:
        spark = self._spark = self._tools.spark()
        self._stop_if_canceled()
        started = time.monotonic()
        with ExitStack() as stack, tagged(spark, self._tag):
            members, broken = self._prepare(claim, waiting, spark, stack)
            if not members:
                return _Scan(), broken
            wanted = sorted({name for member in members for name in member.consumer.columns})
            # From where the last of them stands: what the window leaves out changed no data.
            window = Window(min(member.window.start for member in members), claim.window.end)
            changes = stack.enter_context(
                retrieve_or_snapshot(spark, claim.table, window, wanted, readers=len(members))
            )
            scan = _Scan(
                kind=IterationKind(changes.kind),
                rows=changes.rows_scanned,
                bytes=_bytes_of(changes),
                seconds=time.monotonic() - started,
            )
            reach("after_scan")
            self._stop_if_canceled()

            def apply(member: Member) -> ConsumerResult:
                reach("before_apply", member.job.key.name)
                result = member.consumer.apply(changes, member.window)
                reach("after_commit", member.job.key.name)
                return result

            results = self._fan_out.run(spark, members, apply)
        return scan, broken + results

    def _prepare(
        self, claim: Claim, waiting: Sequence[Claimed], spark: SparkSession, stack: ExitStack
    ) -> tuple[list[Member], list[MemberResult]]:
        """Make the consumers ready; one that can't start, or hangs, leaves the others be."""
        facts = _facts_of(claim.table)
        members = []
        for claimed in waiting:
            consumer = type(claimed.consumer)(claimed.consumer.place, spark)
            stack.callback(consumer.close)
            window = Window(claimed.stands_at, claim.window.end)
            members.append(Member(claimed.job, consumer, window))

        def prepare(member: Member) -> None:
            reach("before_prepare", member.job.key.name)
            member.consumer.prepare(member.job.spec, claim.table, facts)

        results = self._fan_out.run(spark, members, prepare)
        self._stop_if_canceled()
        ready = [
            member for member, result in zip(members, results, strict=True) if result.error is None
        ]
        return ready, [result for result in results if result.error is not None]

    def _stop_if_canceled(self) -> None:
        if self._canceled:
            raise InterruptedError("canceled")


def _facts_of(table: Table) -> TableFacts:
    """Read the table's facts; another table in its place is none of these jobs' business."""
    try:
        facts = read_facts(table.uri)
    except UnknownDeltaTable as error:
        raise SourceTableMissing(f"{table.key}: {table.uri} is no Delta table any more") from error
    if facts.delta_id != table.delta_id:
        raise SourceTableReplaced(
            f"{table.key}: another table ({facts.delta_id}) stands at {table.uri}"
        )
    return facts


def _bytes_of(changes: Changes) -> int | None:
    """The size of what was read; for the record only, so nothing fails for want of it."""
    try:
        return bytes_to_read(
            changes.table.uri, changes.window, snapshot=changes.kind is ChangeKind.SNAPSHOT
        )
    except IscpError:
        return None


def _already_there(claimed: Claimed) -> MemberResult:
    result = ConsumerResult(
        watermark=claimed.stands_at, row_count=claimed.consumer.row_count(), no_op=True
    )
    return MemberResult(claimed.job, result, None, 0.0)

"""One iteration, in the order of the flow: claim -> scan once -> consume -> commit -> record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from iscp_dagster.consumers.base import ConsumerResult
from iscp_dagster.errors import (
    ClaimLost,
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
from iscp_dagster.sources.changes import ChangeKind, retrieve_or_snapshot
from iscp_dagster.sources.facts import TableFacts, read_facts
from iscp_dagster.spark.cancel import interrupt, tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
            kind, rows, scan_seconds, results = self._consume(claim)
        report = IterationReport(
            table=claim.table,
            window=claim.window,
            kind=kind,
            jobs=(),
            rows_scanned=rows,
            scan_seconds=scan_seconds,
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

    def _consume(self, claim: Claim) -> tuple[IterationKind, int, float, list[MemberResult]]:
        """Scan once and fan out; an error of the scan is every member's error."""
        done = [_already_there(claimed) for claimed in claim.held if claimed.done]
        todo = [claimed for claimed in claim.held if not claimed.done]
        if not todo:
            return IterationKind.NO_OP, 0, 0.0, done
        started = time.monotonic()
        try:
            kind, rows, scan_seconds, results = self._scan_and_fan_out(claim, todo)
        except Exception as raised:  # noqa: BLE001 - whatever ends the scan is every member's result
            error = IterationCanceled() if self._canceled else raised
            seconds = time.monotonic() - started
            failed = [MemberResult(one.job, None, error, seconds) for one in todo]
            return IterationKind.TAIL, 0, seconds, done + failed
        return kind, rows, scan_seconds, done + results

    def _scan_and_fan_out(
        self, claim: Claim, todo: Sequence[Claimed]
    ) -> tuple[IterationKind, int, float, list[MemberResult]]:
        spark = self._spark = self._tools.spark()
        self._stop_if_canceled()
        started = time.monotonic()
        with ExitStack() as stack, tagged(spark, self._tag):
            members, broken = self._prepare(claim, todo, spark, stack)
            if not members:
                return IterationKind.TAIL, 0, 0.0, broken
            wanted = sorted({name for member in members for name in member.consumer.columns})
            # From where the last of them stands: what the window leaves out changed no data.
            window = Window(min(member.window.start for member in members), claim.window.end)
            changes = stack.enter_context(
                retrieve_or_snapshot(spark, claim.table, window, wanted, readers=len(members))
            )
            scan_seconds = time.monotonic() - started
            reach("after_scan")
            self._stop_if_canceled()
            results = self._fan_out.run(spark, members, changes)
        snapshot = changes.kind is ChangeKind.SNAPSHOT
        kind = IterationKind.SNAPSHOT if snapshot else IterationKind.TAIL
        return kind, changes.rows_scanned, scan_seconds, broken + results

    def _prepare(
        self, claim: Claim, todo: Sequence[Claimed], spark: SparkSession, stack: ExitStack
    ) -> tuple[list[Member], list[MemberResult]]:
        """Make the consumers ready; one that can't start leaves the others be."""
        facts = _facts_of(claim.table)
        members: list[Member] = []
        broken: list[MemberResult] = []
        for claimed in todo:
            consumer = type(claimed.consumer)(claimed.consumer.place, spark)
            stack.callback(consumer.close)
            try:
                consumer.prepare(claimed.job.spec, claim.table, facts)
            except Exception as raised:  # noqa: BLE001 - whatever it raises is its own result
                self._stop_if_canceled()
                broken.append(MemberResult(claimed.job, None, raised, 0.0))
            else:
                window = Window(claimed.stands_at, claim.window.end)
                members.append(Member(claimed.job, consumer, window))
        return members, broken

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


def _already_there(claimed: Claimed) -> MemberResult:
    result = ConsumerResult(
        watermark=claimed.stands_at, row_count=claimed.consumer.row_count(), no_op=True
    )
    return MemberResult(claimed.job, result, None, 0.0)

"""A Dagster run as an iteration: what the run asks for, and what it tells Dagster afterwards.

Spark and everything that waits for it live on a worker thread. The main thread only waits: it is
the one that Dagster's interrupt reaches, and it then stops Spark and the worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from dagster import AssetExecutionContext, DagsterInstance, Failure, MaterializeResult

from iscp_dagster.errors import IscpError, IterationCanceled
from iscp_dagster.iteration.faults import reach
from iscp_dagster.iteration.request import IterationReport, IterationRequest, JobReport, Tools
from iscp_dagster.iteration.run import IterationRun
from iscp_dagster.orchestration.metadata import materialization
from iscp_dagster.orchestration.names import TAG_STARTED_BY, partitions_name
from iscp_dagster.orchestration.resources import IscpResource, SparkResource
from iscp_dagster.rules.model import TableKey, Window
from iscp_dagster.rules.outcome import classify
from iscp_dagster.spark.session import interrupt_session_of

STOP_SECONDS = 15.0
"""How long a canceled worker may take to give its jobs back."""

_WAIT_SECONDS = 0.1
_AGAIN_SECONDS = 0.5


def iterate(
    context: AssetExecutionContext, table: TableKey, iscp: IscpResource, spark: SparkResource
) -> Iterator[MaterializeResult]:
    """Run one iteration; a result for each index that advanced, then a failure for the others."""
    request = _request(context, table)
    tools = Tools(
        log=iscp.log,
        settings=iscp.settings,
        spark=lambda: spark.session_for(context.run.run_id),
        is_alive=lambda run_id: is_alive(context.instance, run_id),
        silence=lambda run_id: interrupt_session_of(iscp.settings, run_id),
        now=lambda: datetime.now(UTC),
    )
    try:
        report = _on_worker_thread(context, IterationRun(request, tools))
    except IscpError as error:
        # Its own stack tells nothing that the line does not; what caused it may.
        told = Failure(str(error), metadata={"iscp/error_code": error.code})
        raise told from error.__cause__
    # One that was asked for by hand is a partition like any other, once it is accepted.
    context.instance.add_dynamic_partitions(partitions_name(table), [context.partition_key])
    context.log.info(_told(report))
    for job in report.jobs:
        if job.result is not None:
            reach("before_event", job.key.name)
            yield materialization(report, job, tools)
    failed = [job for job in report.jobs if job.error is not None]
    if failed:
        raise Failure(
            "; ".join(_failed(job) for job in failed),
            metadata={f"iscp/{job.key.name}": _failed(job) for job in failed},
            # The runner decides when a job tries again, with a window of its own.
            allow_retries=False,
        )


def is_alive(instance: DagsterInstance, run_id: str) -> bool:
    """Whether Dagster counts a run as queued or running."""
    run = instance.get_run_by_id(run_id)
    return run is not None and not run.is_finished


def _request(context: AssetExecutionContext, table: TableKey) -> IterationRequest:
    if not context.has_partition_key:
        raise Failure(
            "a run needs a window: choose a partition `<from_ts>_<to_ts>`, or run `iscp sync`"
        )
    return IterationRequest(
        table=table,
        window=Window.parse(context.partition_key),
        job_names=tuple(sorted(key.path[-1] for key in context.selected_asset_keys)),
        run_id=context.run.run_id,
    )


def _on_worker_thread(context: AssetExecutionContext, run: IterationRun) -> IterationReport:
    reports: list[IterationReport] = []
    errors: list[BaseException] = []
    # Not `join`: an exception that interrupts it makes Python take the thread for ended.
    ended = threading.Event()

    def work() -> None:
        try:
            reports.append(run.run())
        except BaseException as error:  # noqa: BLE001 - raised again on the main thread
            errors.append(error)
        finally:
            ended.set()

    worker = threading.Thread(target=work, name="iscp-iteration", daemon=True)
    worker.start()
    try:
        while not ended.wait(_WAIT_SECONDS):
            pass
    except BaseException:
        _mark_canceling(context)
        _stop(run, ended)
        raise
    if errors:
        if isinstance(errors[0], IterationCanceled):
            raise KeyboardInterrupt from errors[0]
        raise errors[0]
    return reports[0]


def _mark_canceling(context: AssetExecutionContext) -> None:
    """Tell Dagster that whoever interrupts a sync means it: it would call the run failed."""
    if TAG_STARTED_BY in context.run.tags:
        context.instance.report_run_canceling(context.run, "iscp: interrupted")


def _stop(run: IterationRun, ended: threading.Event) -> None:
    """Cancel until the worker ends: Spark misses an interrupt that comes between two jobs."""
    deadline = time.monotonic() + STOP_SECONDS
    while not ended.is_set() and time.monotonic() < deadline:
        run.cancel()
        ended.wait(_AGAIN_SECONDS)


def _told(report: IterationReport) -> str:
    parts = [
        f"{job.key.name} +{job.result.rows_upserted} -{job.result.rows_deleted}"
        f" ~{job.result.rows_skipped}"
        for job in report.jobs
        if job.result is not None
    ]
    done = ", ".join(parts) or "no index advanced"
    return (
        f"{report.table.key} {report.window} {report.kind}: {report.rows_scanned} rows scanned "
        f"once in {report.scan_seconds:.1f} s; {done}"
    )


def _failed(job: JobReport) -> str:
    assert job.error is not None
    code, message = classify(job.error)
    again = ""
    if job.job is not None and job.job.next_attempt_at is not None:
        again = f", tries again at {job.job.next_attempt_at:%H:%M:%S} UTC"
    return f"{job.key} did not advance: {message} (code {code}{again})"

"""Iterations as Dagster runs: asking for one, and reading back which are in flight."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus, RunRequest, RunsFilter

from iscp_dagster.errors import UsageError
from iscp_dagster.orchestration.names import (
    TAG_ACCOUNT,
    TAG_ATTEMPT,
    TAG_JOB,
    TAG_JOBS,
    TAG_KIND,
    TAG_MAX_RUNTIME,
    TAG_PRIORITY,
    TAG_TABLE,
    TAG_TRIGGER,
    TAG_WINDOW,
)
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import InFlight, IterationKind, Job, TableKey, Window

IN_FLIGHT = (
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
)
_TAG_LENGTH = 63
"""The longest name that Dagster takes in a tag."""
_START_SECONDS = 600
"""Room for a session to start and a table to be scanned, beside the consumers' own timeouts."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A run of ours that Dagster has not ended."""

    in_flight: InFlight
    status: DagsterRunStatus
    started_at: datetime | None


def request_of(iteration: Iteration, jobs: Mapping[int, Job]) -> RunRequest:
    """Ask Dagster for the run of an iteration."""
    return RunRequest(
        run_key=iteration.run_key,
        partition_key=iteration.window.partition_key,
        asset_selection=asset_keys(iteration),
        # Checks have schedules of their own: an iteration does not wait for them.
        asset_check_keys=[],
        tags=tags_of(iteration, jobs),
    )


def asset_keys(iteration: Iteration) -> list[AssetKey]:
    """Return the assets that an iteration materializes."""
    return [AssetKey((*iteration.table.asset_path, name)) for name in iteration.job_names]


def tags_of(iteration: Iteration, jobs: Mapping[int, Job]) -> dict[str, str]:
    """Return the tags that tell Dagster, and anyone who filters runs, what a run is for."""
    timeout = max(jobs[job_id].spec.timeout.total_seconds() for job_id in iteration.job_ids)
    return {
        TAG_TABLE: str(iteration.table),
        TAG_JOBS: json.dumps(list(iteration.job_names)),
        TAG_WINDOW: iteration.window.partition_key,
        TAG_ATTEMPT: str(iteration.attempt),
        TAG_ACCOUNT: iteration.table.account,
        TAG_TRIGGER: iteration.trigger,
        TAG_KIND: str(iteration.kind),
        TAG_PRIORITY: str(iteration.priority),
        TAG_MAX_RUNTIME: str(int(timeout) + _START_SECONDS),
        **{f"{TAG_JOB}{name[:_TAG_LENGTH]}": "yes" for name in iteration.job_names},
    }


def flights(instance: DagsterInstance) -> list[Flight]:
    """Return our runs that are queued or running."""
    records = instance.get_run_records(RunsFilter(statuses=list(IN_FLIGHT)))
    found = []
    for record in records:
        in_flight = read_tags(record.dagster_run)
        if in_flight is None:
            continue
        started = record.start_time
        at = None if started is None else datetime.fromtimestamp(started, UTC)
        found.append(Flight(in_flight, record.dagster_run.status, at))
    return found


def read_tags(run: DagsterRun) -> InFlight | None:
    """Read what a run is for; None for one that is not ours."""
    tags = run.tags
    if TAG_TABLE not in tags:
        return None
    account, _, rest = tags[TAG_TABLE].partition("/")
    try:
        return InFlight(
            run_id=run.run_id,
            table=TableKey.parse(rest.replace("/", ".", 1), account),
            window=Window.parse(tags[TAG_WINDOW]),
            job_names=tuple(json.loads(tags[TAG_JOBS])),
            kind=IterationKind(tags.get(TAG_KIND, IterationKind.TAIL)),
            attempt=int(tags.get(TAG_ATTEMPT, "0")),
            started=run.status in (DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING),
        )
    except (KeyError, ValueError, UsageError):
        # Somebody else's use of our tag: no run of ours, and nothing to stumble over.
        return None


def windows_of(iterations: Iterable[Iteration]) -> dict[TableKey, list[str]]:
    """Return the partition keys that the iterations' runs need, by table."""
    windows: dict[TableKey, list[str]] = {}
    for iteration in iterations:
        keys = windows.setdefault(iteration.table, [])
        if iteration.window.partition_key not in keys:
            keys.append(iteration.window.partition_key)
    return windows

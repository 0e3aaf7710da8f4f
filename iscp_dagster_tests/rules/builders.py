"""Short ways to write jobs, histories and flights in tests.

Version v of any table is committed at `commit_time(v)`, one second after the one before; `NOW` is
an hour after version 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from iscp_dagster.rules.model import (
    TS,
    Commit,
    History,
    InFlight,
    IterationKind,
    Job,
    JobState,
    JobStatus,
    Probed,
    Stage,
    TableKey,
    Window,
)
from iscp_dagster.rules.plan import Iteration, Plan, plan
from iscp_dagster.rules.spec import parse_spec
from iscp_dagster.rules.triggers import Trigger

T0 = datetime(2026, 11, 18, 5, 0, tzinfo=UTC)
NOW = T0 + timedelta(hours=1)
TABLE = TableKey("sys", "db", "docs")


def commit_time(version: int) -> datetime:
    return T0 + timedelta(seconds=version)


def ts(version: int) -> TS:
    return TS(version, commit_time(version)) if version >= 0 else TS.zero()


def history(
    head: int,
    *,
    first: int = 0,
    quiet: Collection[int] = (),
    size: int | Mapping[int, int] = 1,
    since: int = -1,
) -> History:
    """A table at `head`; `quiet` versions changed no data; only what is after `since` was read."""
    sizes = size if isinstance(size, Mapping) else dict.fromkeys(range(head + 1), size)
    return History(
        head=ts(head),
        first_version=first,
        commits=tuple(
            Commit(v, commit_time(v), v not in quiet, sizes.get(v, 1))
            for v in range(max(first, since + 1), head + 1)
        ),
    )


def job(
    name: str,
    at: int = -1,
    *,
    table: TableKey = TABLE,
    job_id: int | None = None,
    trigger: str = "default",
    interval: str | None = None,
    share: bool = False,
    independent: bool = False,
    priority: int = 0,
    max_versions: int = 10_000,
    max_bytes: int = 2**40,
    checked: datetime | None = None,
    **row: Any,
) -> Job:
    """A job that stands at version `at` (-1: new); `checked` is the time in its watermark."""
    key = table.job(name)
    job_id = sum(map(ord, str(key))) * 1000 + len(name) if job_id is None else job_id
    spec = parse_spec(
        {
            "type": "mirror",
            "trigger": {
                "kind": trigger,
                "interval": interval,
                "share": share,
                "independent": independent,
            },
            "priority": priority,
            "max_window_versions": max_versions,
            "max_window_bytes": max_bytes,
        }
    )
    values: dict[str, Any] = {
        "state": JobState.COMPLETED,
        "watermark": ts(at) if checked is None else TS(at, checked),
        "stage": Stage.INIT if at < 0 else Stage.TAIL,
        "status": JobStatus(),
        "attempt": 0,
        "next_attempt_at": None,
        "live_job_id": job_id,
        "lsn": 0,
        "change_seq": 0,
        "create_at": T0,
    }
    return Job(key=key, job_id=job_id, table_id=1, spec=spec, **{**values, **row})


def flight(
    window: tuple[int, int],
    *names: str,
    kind: IterationKind = IterationKind.TAIL,
    attempt: int = 0,
    table: TableKey = TABLE,
    job_ids: tuple[int, ...] = (),
) -> InFlight:
    start, end = window
    return InFlight(
        run_id=f"run-{start}-{end}-{'-'.join(names)}",
        table=table,
        window=Window(ts(start), ts(end)),
        job_names=names,
        kind=kind,
        attempt=attempt,
        started=True,
        job_ids=job_ids,
    )


def tick(
    jobs: Sequence[Job],
    probed: Probed,
    *flights: InFlight,
    now: datetime = NOW,
    free_slots: int | None = None,
    triggers: Mapping[str, Trigger] | None = None,
) -> Plan:
    """Plan one tick over one table."""
    return plan(jobs, {TABLE: probed}, flights, now, free_slots=free_slots, triggers=triggers)


def trips(iterations: Sequence[Iteration]) -> dict[str, tuple[int, int, str]]:
    """What is planned, as {names: (from, to, kind)}."""
    return {
        "+".join(it.job_names): (it.window.start.version, it.window.end.version, str(it.kind))
        for it in iterations
    }

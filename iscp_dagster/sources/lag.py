"""How far behind its table an index is.

The *lag* is the age of the oldest data change that the index does not hold yet: 0 when it holds all
of them, however long ago the last one was; unknown before the first sync.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING

from iscp_dagster.errors import TableUnreadable, UsageError
from iscp_dagster.rules.model import Job, Table
from iscp_dagster.sources.delta_log import DeltaLog, open_log

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_MOST_AT_ONCE = 64
"""Most commits read at once in search of one that changes data."""
_REMOTE_THREADS = 16


def lag_seconds(
    jobs: Iterable[Job], tables: Mapping[int, Table], now: datetime
) -> dict[int, float | None]:
    """Return each job's lag by `job_id`; None where it can't be told."""
    jobs = list(jobs)
    stores: dict[str, ObjectStore] = {}
    wanted = {
        (job.table_id, job.watermark.version)
        for job in jobs
        if not job.is_new and job.table_id in tables
    }
    logs = {
        table_id: log
        for table_id in {table_id for table_id, _ in wanted}
        if (log := _open(tables[table_id].uri, stores)) is not None
    }
    oldest = _oldest_changes([place for place in wanted if place[0] in logs], logs)
    lags: dict[int, float | None] = {}
    for job in jobs:
        found = oldest.get((job.table_id, job.watermark.version), _UNKNOWN)
        if found is _UNKNOWN:
            lags[job.job_id] = None
        else:
            lags[job.job_id] = max(0.0, (now - found).total_seconds()) if found else 0.0
    return lags


_UNKNOWN = datetime.min


def _open(uri: str, stores: dict[str, ObjectStore]) -> DeltaLog | None:
    """Open a table's log; None where its store can't be had: the others still have a lag."""
    try:
        return open_log(uri, stores)
    except (TableUnreadable, UsageError):
        return None


def _oldest_changes(
    wanted: Iterable[tuple[int, int]], logs: Mapping[int, DeltaLog]
) -> dict[tuple[int, int], datetime | None]:
    local = [place for place in wanted if not logs[place[0]].remote]
    remote = [place for place in wanted if logs[place[0]].remote]
    oldest = {place: _oldest_change(logs[place[0]], place[1]) for place in local}
    if remote:
        with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
            found = pool.map(lambda place: _oldest_change(logs[place[0]], place[1]), remote)
            oldest.update(zip(remote, found, strict=True))
    return oldest


def _oldest_change(log: DeltaLog, after: int) -> datetime | None:
    """Return the time of the first data change after a version; None when there is none."""
    try:
        start = after + 1
        if not log.has(start):
            if log.has(after):
                return None
            later = log.versions(start)
            if not later:
                # Not even the commit the index stands at: the table is gone.
                return _UNKNOWN
            start = later[0]
        # Nearly every commit changes data: the first one read is mostly the last one needed.
        at_once = 1
        while commits := log.read(start, at_once, None):
            for one in commits:
                if one.commit.data_change:
                    return one.commit.time
            start += len(commits)
            at_once = min(at_once * 4, _MOST_AT_ONCE)
    except (TableUnreadable, OSError):
        return _UNKNOWN
    return None

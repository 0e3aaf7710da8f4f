"""One search, from the job's name to the hits.

The log only tells where the index is. Where it stands, and what it holds, the store itself says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from iscp_dagster.errors import (
    IndexBuilding,
    IndexDropped,
    IndexMissing,
    JobInError,
    UnknownJob,
    UsageError,
)
from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import DEFAULT_ACCOUNT, TS, Job, JobKey, JobState, Table, TableKey
from iscp_dagster.search.result import Answer, SearchResult
from iscp_dagster.settings import Settings
from iscp_dagster.stores.paths import index_uri

if TYPE_CHECKING:
    from iscp_dagster.stores.lance_search import LanceReader

DELTA_TYPES = ("lookup", "mirror", "aggregate")
LANCE_TYPES = ("fulltext", "vector")


@dataclass(frozen=True, slots=True)
class Question:
    """What a search asks for."""

    query: str | None
    vector: Sequence[float] | None
    k: int
    where: str | None
    columns: Sequence[str] | None
    fresh: bool


def search(
    table: str,
    job: str,
    query: str | None = None,
    *,
    k: int = 10,
    account: str = DEFAULT_ACCOUNT,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    vector: Sequence[float] | None = None,
    fresh: bool = False,
    log: JobLog | None = None,
) -> SearchResult:
    """Ask an index; neither Spark nor a JVM is needed.

    Args:
        table: `DB.TABLE`.
        job: The index's name.
        query: For full-text words, `"phrases"`, `+must`, `-not`, `fuzzy~1`; for vectors a text to
            be near to, where the index was made with an embedder; for lookups and aggregates
            `column=value …`, or a value of the first column it is sorted by.
        k: At most so many hits.
        account: Who owns the table.
        where: A filter over the columns that the index holds.
        columns: The columns to return beside the key; all that the index holds by default.
        vector: What to be near to, for vector indexes.
        fresh: Merge what the index does not hold yet from the table's change feed: the hits are
            those of an index that was synced first.
        log: The log, where one is open already.

    Raises:
        IndexBuilding: The index has never been synced: it can't answer yet.
        JobInError: It failed before its first sync was done.
        IndexDropped: It was unregistered.
        TailUnavailable: `fresh` is wanted and the changes can't be read.
        UsageError: No such index, or the question does not fit it.

    Example:
        >>> search("shop.items", "names", "hammer -toy", k=3).table.to_pylist()
        [{'id': 1, 'score': 0.98, 'name': 'hammer'}]
    """
    if k < 1:
        raise UsageError(f"k: {k} is not above 0")
    key = TableKey.parse(table, account).job(job)
    with _opened(log) as opened:
        found, source = _look_up(opened, key)
    uri = index_uri(Settings.from_env().warehouse, key, found.live_job_id)
    answer = _ask(found, source, uri, Question(query, vector, k, where, columns, fresh))
    rows, names = answer.table()
    return SearchResult(
        table=rows,
        key=names,
        watermark=answer.watermark,
        store_version=answer.store_version,
        lag_seconds=_lag(found, source, answer.watermark),
        fresh=fresh,
        error=_error(found),
    )


def _look_up(log: JobLog, key: JobKey) -> tuple[Job, Table]:
    table = log.tables.get(key.table_key)
    try:
        return log.jobs.get(key), table
    except UnknownJob:
        gone = [row for row in log.jobs.dropped_before(datetime.now(UTC)) if row.key == key]
        times = [row.drop_at for row in gone if row.drop_at is not None]
        if not times:
            raise
        raise IndexDropped(f"{key} was dropped at {max(times):%Y-%m-%dT%H:%M:%SZ}") from None


def _ask(job: Job, table: Table, uri: str, question: Question) -> Answer:
    if question.vector is not None and job.spec.type != "vector":
        raise UsageError(f"vector: {job.key} is a {job.spec.type} index and has no vectors")
    if job.spec.type in DELTA_TYPES:
        return _ask_delta(job, table, uri, question)
    if job.spec.type in LANCE_TYPES:
        return _ask_lance(job, table, uri, question)
    raise UsageError(
        f"search: {job.key} is a {job.spec.type} index",
        cure=f"known are {', '.join((*LANCE_TYPES, *DELTA_TYPES))}",
    )


def _ask_delta(job: Job, table: Table, uri: str, q: Question) -> Answer:
    from iscp_dagster.search.delta import DeltaReader

    reader = DeltaReader.open(uri, job.live_job_id)
    if reader is None:
        raise _not_yet(job)
    overlay = None
    if q.fresh:
        from iscp_dagster.search.fresh_delta import overlay_of
        from iscp_dagster.search.tail import read_tail

        tail = read_tail(table, reader.watermark, reader.build)
        overlay = None if tail is None else overlay_of(reader, tail)
    return reader.find(q.query, q.k, q.where, q.columns, overlay)


def _ask_lance(job: Job, table: Table, uri: str, q: Question) -> Answer:
    from iscp_dagster.stores.lance_search import LanceReader

    try:
        reader = LanceReader.open(uri)
    except (IndexBuilding, IndexMissing) as error:
        raise _not_yet(job) from error
    if not q.fresh:
        return _find(reader, q)
    from iscp_dagster.search.fresh_lance import check_clonable, with_tail
    from iscp_dagster.search.tail import read_tail

    check_clonable(job, uri)
    tail = read_tail(table, reader.watermark, reader.build)
    if tail is None:
        return _find(reader, q)
    with with_tail(job, reader, tail) as clone:
        # The clone counts versions of its own: what was asked is the index's.
        return replace(_find(clone, q), store_version=reader.version)


def _find(reader: LanceReader, q: Question) -> Answer:
    from iscp_dagster.search.lance import find_near, find_text

    if reader.build["type"] == "fulltext":
        return find_text(reader, q.query, q.k, q.where, q.columns)
    return find_near(reader, q.query, q.vector, q.k, q.where, q.columns)


def _not_yet(job: Job) -> IndexBuilding | JobInError:
    """Say why there is nothing to ask."""
    if job.state is JobState.ERROR:
        return JobInError(f"{job.key} failed before its first sync was done: {_why(job)}")
    text = f"{job.key} is still building"
    if job.status.progress:
        text += f" ({job.status.progress})"
    if job.paused_at is not None:
        return IndexBuilding(f"{text} and is paused", cure="`iscp resume` lets it go on")
    if job.status.error_code:
        text += f", its latest attempt failed: {_why(job)}"
    return IndexBuilding(text)


def _error(job: Job) -> str | None:
    return _why(job) if job.state is JobState.ERROR else None


def _why(job: Job) -> str:
    return f"{job.status.error_msg} ({job.status.error_code})"


def _lag(job: Job, table: Table, watermark: TS) -> float | None:
    """How far behind the store is; the log may not know yet where it stands."""
    from iscp_dagster.sources.lag import lag_seconds

    at = replace(job, watermark=watermark)
    return lag_seconds([at], {table.table_id: table}, datetime.now(UTC))[job.job_id]


@contextmanager
def _opened(log: JobLog | None) -> Iterator[JobLog]:
    if log is not None:
        yield log
        return
    with JobLog.open(Settings.from_env()) as opened:
        yield opened

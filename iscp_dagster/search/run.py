"""One search, from the job's name to the hits.

The log only tells where the index is. Where it stands, and what it holds, the store itself says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from iscp_dagster.errors import IndexDropped, UnknownJob, UsageError
from iscp_dagster.joblog import JobLog
from iscp_dagster.joblog.log import opened
from iscp_dagster.rules.model import DEFAULT_ACCOUNT, TS, JobKey, JobState, TableKey
from iscp_dagster.search.ask import Index, Question, ask, why
from iscp_dagster.search.result import SearchResult
from iscp_dagster.settings import Settings
from iscp_dagster.stores.paths import index_uri


def search(
    table: str,
    job: str | Sequence[str],
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
        job: The index's name; or several names, with commas between them or as a list: full-text
            and vector indexes, whose ranks are put together at one version.
        query: For full-text words, `"phrases"`, `+must`, `-not`, `fuzzy~1`; for vectors a text to
            be near to, where the index was made with an embedder; for lookups and aggregates
            `column=value …`, or a value of the first column it is sorted by.
        k: At most so many hits.
        account: Who owns the table.
        where: A filter over the columns that the index holds.
        columns: The columns to return beside the key; all that the index holds by default.
        vector: What to be near to, for vector indexes; several indexes take the query for words
            beside it.
        fresh: Merge what the index does not hold yet from the table's change feed: the hits are
            those of an index that was synced first.
        log: The log, where one is open already.

    Raises:
        IndexBuilding: The index has never been synced: it can't answer yet.
        JobInError: It failed before its first sync was done.
        IndexDropped: It was unregistered.
        IndexUnreadable: Its files can't be read.
        NoCommonVersion: Several indexes stand at different versions, and none that they had in
            common is left.
        TailUnavailable: `fresh` is wanted and the changes can't be read.
        UsageError: No such index, or the question does not fit it.

    Example:
        >>> search("shop.items", "names", "hammer -toy", k=3).table.to_pylist()
        [{'id': 1, 'score': 0.98, 'name': 'hammer'}]
    """
    if k < 1:
        raise UsageError(f"k: {k} is not above 0")
    names = _names(job)
    of = TableKey.parse(table, account)
    with opened(log) as held:
        indexes = [_look_up(held, of.job(name)) for name in names]
    question = Question(query, vector, k, where, columns, fresh)
    if len(indexes) == 1:
        answer = ask(indexes[0], question)
        versions = {names[0]: answer.store_version}
    else:
        from iscp_dagster.search.hybrid import ask_together

        answer, versions = ask_together(indexes, question)
    rows, key = answer.table()
    return SearchResult(
        table=rows,
        key=key,
        watermark=answer.watermark,
        store_versions=versions,
        lag_seconds=_lag(indexes[0], answer.watermark),
        fresh=fresh,
        error=_error(indexes),
    )


def _names(job: str | Sequence[str]) -> list[str]:
    names = [name.strip() for name in job.split(",")] if isinstance(job, str) else list(job)
    if not names:
        raise UsageError("job: missing", cure="name an index, or several of one table")
    if len(set(names)) < len(names):
        raise UsageError(f"job: an index is named twice in {','.join(names)}")
    return names


def _look_up(log: JobLog, key: JobKey) -> Index:
    table = log.tables.get(key.table_key)
    try:
        job = log.jobs.get(key)
    except UnknownJob:
        gone = [row for row in log.jobs.dropped_before(datetime.now(UTC)) if row.key == key]
        times = [row.drop_at for row in gone if row.drop_at is not None]
        if not times:
            raise
        raise IndexDropped(f"{key} was dropped at {max(times):%Y-%m-%dT%H:%M:%SZ}") from None
    return Index(job, table, index_uri(Settings.from_env().warehouse, key, job.live_job_id))


def _error(indexes: Sequence[Index]) -> str | None:
    """Say which of the indexes stand still, and why; by name where there are several."""
    broken = [index.job for index in indexes if index.job.state is JobState.ERROR]
    if len(indexes) == 1:
        return why(broken[0]) if broken else None
    return "; ".join(f"{job.key.name}: {why(job)}" for job in broken) or None


def _lag(index: Index, watermark: TS) -> float | None:
    """How far behind the answer is; the log may not know yet where the store stands."""
    from iscp_dagster.sources.lag import lag_seconds

    at = replace(index.job, watermark=watermark)
    return lag_seconds([at], {index.table.table_id: index.table}, datetime.now(UTC))[at.job_id]

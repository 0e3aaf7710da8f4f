"""Register and steer jobs: the functions behind the `iscp` commands.

Every function takes the table as `DB.TABLE`, the account (default `sys`), and, where the caller has
one open already, the log. Wrong input raises `UsageError` and writes nothing.

Example:
    >>> from iscp_dagster import api
    >>> api.add_table("shop.items", uri="/data/items", pk=["id"])
    True
    >>> spec = {"type": "lookup", "options": {"by": "section"}}
    >>> api.register_job("shop.items", "by_section", spec)
    True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from iscp_dagster.errors import IscpError, UsageError
from iscp_dagster.joblog import JobLog
from iscp_dagster.joblog.log import opened
from iscp_dagster.joblog.rows import UnreadableRow
from iscp_dagster.rules.model import (
    DEFAULT_ACCOUNT,
    Job,
    JobState,
    JobStatus,
    Table,
    TableKey,
    check_name,
)
from iscp_dagster.rules.spec import JobSpec, merge_spec, parse_spec
from iscp_dagster.settings import Settings

if TYPE_CHECKING:
    from iscp_dagster.maintenance.optimize import OptimizeReport
    from iscp_dagster.sources.facts import TableFacts


def add_table(
    table: str,
    *,
    uri: str,
    pk: Sequence[str],
    account: str = DEFAULT_ACCOUNT,
    enable_cdf: bool = False,
    log: JobLog | None = None,
) -> bool:
    """Record a Delta table as a source.

    Args:
        table: `DB.TABLE`, the name it goes by here.
        uri: Where the Delta table is; a local path or an object store URL.
        pk: The columns of its primary key.
        account: Who owns it.
        enable_cdf: Turn the change data feed on where it is off.
        log: The log, where one is open already.

    Returns:
        True, or False when it is recorded already.

    Raises:
        UsageError: no Delta table there, a key column is missing, or the change feed is off.
    """
    from iscp_dagster.sources.facts import read_facts
    from iscp_dagster.sources.registering import normalize_uri

    key = TableKey.parse(table, account)
    pk = _check_pk(pk)
    uri = normalize_uri(uri)
    facts = read_facts(uri)
    _check_columns("pk", pk, facts, uri)
    if not facts.change_feed and not enable_cdf:
        raise UsageError(
            f"uri: the change data feed of {uri} is off",
            cure="say --enable-cdf, or set the table property delta.enableChangeDataFeed=true",
        )
    with opened(log) as held:
        # The log first: a name that is taken leaves the table as it was.
        added = held.tables.add(key, uri=uri, pk=pk, delta_id=facts.delta_id, now=_now())
        if not facts.change_feed:
            _enable_or_forget(held, key, uri, added)
        return added


def drop_table(table: str, *, account: str = DEFAULT_ACCOUNT, log: JobLog | None = None) -> bool:
    """Forget a table; its data stays where it is. False when it is unknown."""
    key = TableKey.parse(table, account)
    with opened(log) as held:
        return held.tables.drop(key, _now())


def get_tables(*, account: str | None = None, log: JobLog | None = None) -> list[Table]:
    """Return the recorded tables."""
    if account is not None:
        check_name("account", account)
    with opened(log) as held:
        return held.tables.list(account)


def register_job(
    table: str,
    job: str,
    spec: JobSpec | Mapping[str, Any],
    *,
    account: str = DEFAULT_ACCOUNT,
    log: JobLog | None = None,
) -> bool:
    """Register an index; it is built as soon as the runner sees it.

    Returns:
        True, or False when a job of that name is alive already.

    Raises:
        UsageError: unknown table, consumer, trigger or column, or a value out of range.
    """
    key = TableKey.parse(table, account).job(job)
    checked = spec if isinstance(spec, JobSpec) else parse_spec(dict(spec))
    with opened(log) as held:
        _check_against_table(checked, held.tables.get(key.table_key))
        return held.jobs.register(key, checked, _now())


def unregister_job(
    table: str, job: str, *, account: str = DEFAULT_ACCOUNT, log: JobLog | None = None
) -> bool:
    """Drop an index: what runs is fenced off and stops; rows and files go a day later.

    Returns:
        True, or False when no such job is alive.
    """
    key = TableKey.parse(table, account).job(job)
    with opened(log) as held:
        return held.jobs.unregister(key, _now())


def update_job_spec(
    table: str,
    job: str,
    patch: Mapping[str, Any],
    *,
    account: str = DEFAULT_ACCOUNT,
    interrupt: bool = False,
    log: JobLog | None = None,
) -> Job:
    """Change a job's trigger, priority or limits; fields left empty keep their value.

    Args:
        table: `DB.TABLE`.
        job: The job's name.
        patch: Fields of a `JobSpec`.
        account: Who owns the table.
        interrupt: Cancel the job's queued and running iterations at once; otherwise the change
            applies after the current one.
        log: The log, where one is open already.
    """
    key = TableKey.parse(table, account).job(job)
    with opened(log) as held:
        # What is built is fixed: the table need not be asked, nor even be there.
        _check_trigger(merge_spec(held.jobs.get(key).spec, dict(patch)))
        return held.jobs.update_spec(key, patch, interrupt=interrupt)


def get_job_status(
    table: str, job: str, *, account: str = DEFAULT_ACCOUNT, log: JobLog | None = None
) -> JobStatus:
    """Return how a job's latest iteration went."""
    return get_job(table, job, account=account, log=log).status


def get_job(
    table: str, job: str, *, account: str = DEFAULT_ACCOUNT, log: JobLog | None = None
) -> Job:
    """Return a live job."""
    key = TableKey.parse(table, account).job(job)
    with opened(log) as held:
        return held.jobs.get(key)


def get_jobs(
    state: JobState | str | None = None,
    *,
    account: str | None = None,
    table: str | None = None,
    log: JobLog | None = None,
) -> Sequence[Job | UnreadableRow]:
    """Return the live jobs, all or those in one state."""
    if account is not None:
        check_name("account", account)
    wanted = None if state is None else _state(state)
    key = None if table is None else TableKey.parse(table, account or DEFAULT_ACCOUNT)
    with opened(log) as held:
        return held.jobs.list(state=wanted, account=account, table=key)


def pause_job(
    table: str, job: str, *, account: str = DEFAULT_ACCOUNT, log: JobLog | None = None
) -> bool:
    """Start no more iterations of a job; False when it is paused already."""
    key = TableKey.parse(table, account).job(job)
    with opened(log) as held:
        return held.jobs.pause(key, _now())


def resume_job(
    table: str, job: str, *, account: str = DEFAULT_ACCOUNT, log: JobLog | None = None
) -> bool:
    """Let a paused job go on from its watermark; False when it is not paused."""
    key = TableKey.parse(table, account).job(job)
    with opened(log) as held:
        return held.jobs.resume(key)


def repair_job(
    table: str, job: str, *, account: str = DEFAULT_ACCOUNT, log: JobLog | None = None
) -> bool:
    """Clear a job's error and its wait; it goes on from its watermark. False if it has none."""
    key = TableKey.parse(table, account).job(job)
    with opened(log) as held:
        return held.jobs.repair(key)


def optimize_job(
    table: str,
    job: str,
    *,
    retrain: bool = False,
    account: str = DEFAULT_ACCOUNT,
    tell: Callable[[str], None] = lambda step: None,
    log: JobLog | None = None,
) -> OptimizeReport:
    """Compact an index and merge its segments, while searches and iterations go on.

    Args:
        table: `DB.TABLE`.
        job: The job's name.
        retrain: Train the centroids of a vector index, and build a text index, anew.
        account: Who owns the table.
        tell: Called with what comes next, before each step.
        log: The log, where one is open already.

    Raises:
        IndexBuilding: The index has never been synced.
        UsageError: No such index, or there is nothing to train in it.
    """
    from iscp_dagster.maintenance.optimize import optimize_index

    found = get_job(table, job, account=account, log=log)
    warehouse = Settings.from_env().warehouse
    return optimize_index(found, warehouse, retrain=retrain, tell=tell)


def _check_against_table(spec: JobSpec, table: Table) -> None:
    from iscp_dagster.consumers.registry import get_consumer_class
    from iscp_dagster.sources.facts import read_facts

    _check_trigger(spec)
    consumer = get_consumer_class(spec.type)
    # What counts as a column is the consumer's to say: some take paths into one.
    consumer.check_spec(spec, read_facts(table.uri))


def _check_trigger(spec: JobSpec) -> None:
    from iscp_dagster.orchestration.triggers import known_triggers

    triggers = known_triggers()
    if spec.trigger.kind not in triggers:
        raise UsageError(
            f"trigger: {spec.trigger.kind!r} is unknown", cure=f"known: {', '.join(triggers)}"
        )


def _enable_or_forget(log: JobLog, key: TableKey, uri: str, added: bool) -> None:
    """Turn the change feed on; where that fails, a table just recorded is no source."""
    from iscp_dagster.sources.registering import enable_change_feed

    try:
        enable_change_feed(uri)
    except IscpError:
        if added:
            log.tables.drop(key, _now())
        raise


def _check_columns(field: str, names: Sequence[str], facts: TableFacts, where: str) -> None:
    known = [column.name for column in facts.columns]
    missing = [name for name in names if name not in known]
    if missing:
        raise UsageError(
            f"{field}: {where} has no column {', '.join(missing)}",
            cure=f"its columns are {', '.join(known)}",
        )


def _check_pk(pk: Sequence[str]) -> tuple[str, ...]:
    names = tuple(pk)
    if not names or any(not name for name in names):
        raise UsageError("pk: name at least one column", cure="write --pk a,b")
    if len(set(names)) != len(names):
        raise UsageError("pk: a column is named twice")
    return names


def _state(state: JobState | str) -> JobState:
    try:
        return JobState(state)
    except ValueError as error:
        raise UsageError(
            f"state: {state!r} is unknown", cure=f"known: {', '.join(JobState)}"
        ) from error


def _now() -> datetime:
    return datetime.now(UTC)

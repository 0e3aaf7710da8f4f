"""Jobs in the log: registration, steering, compare-and-set writes, change subscription.

State and watermark belong to whoever holds the job's *lsn*: each such write names the lsn it has
read and moves it on; a write that finds another lsn, or a dropped job, touches nothing. Spec and
pause belong to the user and are written in the one queue of writers, so none is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from iscp_dagster.errors import ClaimLost, LogSchemaTooNew, UnknownJob
from iscp_dagster.joblog.database import Database, Write
from iscp_dagster.joblog.rows import UnreadableRow, jobs_query, to_job, write_status
from iscp_dagster.joblog.schema import iscp_tables, mo_iscp_log
from iscp_dagster.joblog.tables import need_table
from iscp_dagster.rules.model import TS, Job, JobKey, JobState, JobStatus, Stage, TableKey
from iscp_dagster.rules.spec import JobSpec, merge_spec

_OWNED_BY_LSN = frozenset({"state", "watermark", "stage", "status", "attempt", "next_attempt_at"})


@dataclass(frozen=True, slots=True)
class LogChanges:
    """What has changed in the log since a point in its sequence."""

    jobs: tuple[Job, ...]
    """Jobs as they are now; dropped ones carry `drop_at`."""
    unreadable: tuple[UnreadableRow, ...]
    change_seq: int
    """Ask from here the next time."""


class Jobs:
    """The job generations of the log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, key: JobKey, spec: JobSpec, now: datetime) -> bool:
        """Add a job under a new generation; False when the name is alive already."""
        with self._database.write() as write:
            table = need_table(write.connection, key.table_key)
            if write.connection.execute(_live_rows(key)).first() is not None:
                return False
            job_id = write.next_number("job")
            write.connection.execute(
                insert(mo_iscp_log).values(
                    account_id=key.account,
                    table_id=table.table_id,
                    job_name=key.name,
                    job_id=job_id,
                    job_spec=spec.model_dump_json(),
                    job_state=JobState.COMPLETED,
                    watermark=str(TS.zero()),
                    job_status="{}",
                    create_at=now,
                    stage=Stage.INIT,
                    attempt=0,
                    live_job_id=job_id,
                    lsn=0,
                    change_seq=write.change_seq,
                )
            )
            return True

    def unregister(self, key: JobKey, now: datetime) -> bool:
        """Drop a job, and with it the right of anything that runs to write; False when unknown."""
        with self._database.write() as write:
            live = [row.job_id for row in write.connection.execute(_live_rows(key))]
            if not live:
                return False
            write.connection.execute(
                update(mo_iscp_log)
                .where(mo_iscp_log.c.job_id.in_(live))
                .values(drop_at=now, lsn=mo_iscp_log.c.lsn + 1, change_seq=write.change_seq)
            )
            return True

    def update_spec(self, key: JobKey, patch: Mapping[str, Any], *, interrupt: bool = False) -> Job:
        """Lay a patch over a job's spec; `interrupt` also fences the iteration that runs."""
        with self._database.write() as write:
            job = _need_live(write.connection, key)
            return self._set_by_user(
                write, job, interrupt=interrupt, spec=merge_spec(job.spec, dict(patch))
            )

    def pause(self, key: JobKey, now: datetime) -> bool:
        """Stop starting iterations of a job; False when it is paused already."""
        with self._database.write() as write:
            job = _need_live(write.connection, key)
            if job.paused_at is not None:
                return False
            self._set_by_user(write, job, paused_at=now)
            return True

    def resume(self, key: JobKey) -> bool:
        """Let a paused job go on; False when it is not paused."""
        with self._database.write() as write:
            job = _need_live(write.connection, key)
            if job.paused_at is None:
                return False
            self._set_by_user(write, job, paused_at=None)
            return True

    def repair(self, key: JobKey) -> bool:
        """Clear a job's error and wait, so that it goes on from its watermark.

        False when there is nothing to clear, or an iteration is in flight: its outcome decides.
        """
        with self._database.write() as write:
            job = _need_live(write.connection, key)
            if job.state in (JobState.PENDING, JobState.RUNNING):
                return False
            if job.state != JobState.ERROR and job.attempt == 0 and job.next_attempt_at is None:
                return False
            status = replace(job.status, error_code=0, error_msg="")
            state = JobState.COMPLETED if job.state == JobState.ERROR else job.state
            changes = {"state": state, "status": status, "attempt": 0, "next_attempt_at": None}
            if not _compare_and_set(write, job, changes):
                raise ClaimLost(f"{key} moved while it was repaired")
            return True

    def get(self, key: JobKey) -> Job:
        """Return a live job.

        Raises:
            UnknownJob: there is none of that name.
        """
        with self._database.read() as connection:
            return _need_live(connection, key)

    def list(
        self,
        *,
        state: JobState | None = None,
        account: str | None = None,
        table: TableKey | None = None,
    ) -> Sequence[Job | UnreadableRow]:
        """Return live jobs, ordered by key."""
        query = jobs_query().where(mo_iscp_log.c.drop_at.is_(None))
        if state is not None:
            query = query.where(mo_iscp_log.c.job_state == state)
        if account is not None:
            query = query.where(mo_iscp_log.c.account_id == account)
        if table is not None:
            query = query.where(*_on_table(table))
        query = query.order_by(
            mo_iscp_log.c.account_id,
            iscp_tables.c.db_name,
            iscp_tables.c.table_name,
            mo_iscp_log.c.job_name,
            mo_iscp_log.c.job_id,
        )
        with self._database.read() as connection:
            return [to_job(row) for row in connection.execute(query)]

    def changes(self, since: int) -> LogChanges:
        """Return the jobs whose rows changed after `since`; 0 asks for all that live."""
        query = jobs_query().where(mo_iscp_log.c.change_seq > since)
        if since == 0:
            query = query.where(mo_iscp_log.c.drop_at.is_(None))
        with self._database.read() as connection:
            rows = [to_job(row) for row in connection.execute(query)]
        jobs = tuple(row for row in rows if isinstance(row, Job))
        unreadable = tuple(row for row in rows if isinstance(row, UnreadableRow))
        return LogChanges(jobs, unreadable, max((row.change_seq for row in rows), default=since))

    def dropped_before(self, before: datetime) -> Sequence[Job | UnreadableRow]:
        """Return the generations that were dropped before a time."""
        query = jobs_query().where(mo_iscp_log.c.drop_at < before)
        with self._database.read() as connection:
            return [to_job(row) for row in connection.execute(query)]

    def forget(self, job_id: int) -> bool:
        """Delete the row of a dropped generation; a live one stays."""
        statement = delete(mo_iscp_log).where(
            mo_iscp_log.c.job_id == job_id, mo_iscp_log.c.drop_at.is_not(None)
        )
        with self._database.touch() as connection:
            return connection.execute(statement).rowcount > 0

    def lsns(self, job_ids: Iterable[int]) -> dict[int, int]:
        """Return the lsn of each of these generations that still lives."""
        query = select(mo_iscp_log.c.job_id, mo_iscp_log.c.lsn).where(
            mo_iscp_log.c.job_id.in_(list(job_ids)), mo_iscp_log.c.drop_at.is_(None)
        )
        with self._database.read() as connection:
            return {row.job_id: row.lsn for row in connection.execute(query)}

    def compare_and_set(self, job: Job, **changes: Any) -> Job:
        """Write state or watermark of a job that has not moved since it was read.

        Returns:
            The job as it stands now, with a spec or pause that the user changed meanwhile.

        Raises:
            ClaimLost: it has moved, or was dropped; nothing was written.
        """
        (written,) = self.compare_and_set_many([(job, changes)])
        if written is None:
            raise ClaimLost(f"{job.key} (generation {job.job_id}) moved on or was dropped")
        return written

    def compare_and_set_many(
        self, writes: Iterable[tuple[Job, Mapping[str, Any]]]
    ) -> list[Job | None]:
        """Write several jobs in one transaction, each under its own token; None for those lost."""
        with self._database.write() as write:
            return [_compare_and_set(write, job, changes) for job, changes in writes]

    def _set_by_user(
        self, write: Write, job: Job, *, interrupt: bool = False, **changes: Any
    ) -> Job:
        columns = _columns(changes)
        if interrupt:
            columns["lsn"] = job.lsn + 1
        write.connection.execute(
            update(mo_iscp_log)
            .where(mo_iscp_log.c.job_id == job.job_id)
            .values(change_seq=write.change_seq, **columns)
        )
        return replace(job, **changes, change_seq=write.change_seq, lsn=columns.get("lsn", job.lsn))


def _compare_and_set(write: Write, job: Job, changes: Mapping[str, Any]) -> Job | None:
    unknown = changes.keys() - _OWNED_BY_LSN
    if unknown:
        raise TypeError(f"not written by compare-and-set: {', '.join(sorted(unknown))}")
    written = write.connection.execute(
        update(mo_iscp_log)
        .where(
            mo_iscp_log.c.job_id == job.job_id,
            mo_iscp_log.c.lsn == job.lsn,
            mo_iscp_log.c.drop_at.is_(None),
        )
        .values(lsn=job.lsn + 1, change_seq=write.change_seq, **_columns(changes))
    )
    if written.rowcount == 0:
        return None
    row = write.connection.execute(jobs_query().where(mo_iscp_log.c.job_id == job.job_id)).one()
    now = to_job(row)
    if isinstance(now, Job):
        return now
    # A newer version altered the spec meanwhile: this run ends with the one it began with.
    return replace(job, **changes, lsn=job.lsn + 1, change_seq=write.change_seq)


def _columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Turn fields of a Job into columns of its row."""
    columns: dict[str, Any] = {}
    for name, value in changes.items():
        match value:
            case JobSpec():
                columns["job_spec"] = value.model_dump_json()
            case JobStatus():
                columns["job_status"] = write_status(value)
            case JobState():
                columns["job_state"] = value
            case TS():
                columns[name] = str(value)
            case _:
                columns[name] = value
    return columns


def _live_rows(key: JobKey):
    return jobs_query().where(
        *_on_table(key.table_key),
        mo_iscp_log.c.job_name == key.name,
        mo_iscp_log.c.drop_at.is_(None),
    )


def _on_table(key: TableKey):
    # Live jobs are on live tables only. With that and the account said of both, a lookup goes
    # through the index of live tables to the jobs of one of them, however many jobs there are.
    return (
        mo_iscp_log.c.account_id == key.account,
        iscp_tables.c.account_id == key.account,
        iscp_tables.c.db_name == key.db,
        iscp_tables.c.table_name == key.table,
        iscp_tables.c.drop_at.is_(None),
    )


def _need_live(connection: Connection, key: JobKey) -> Job:
    query = _live_rows(key).order_by(mo_iscp_log.c.job_id)
    row = connection.execute(query).first()
    if row is None:
        raise UnknownJob(f"job {key} is not in the log")
    job = to_job(row)
    if isinstance(job, UnreadableRow):
        raise LogSchemaTooNew(f"{key}: {job.reason}")
    return job

"""Iterations in the log: what each one read, and what each of its consumers did.

An iteration is *open* until its end is written. While it is open its run writes a heartbeat; one
that has stopped beating belongs to a run that died without a word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from iscp_dagster.joblog.database import Database
from iscp_dagster.joblog.schema import iscp_tables, mo_iscp_iterations
from iscp_dagster.rules.model import TS, IterationKind, Table, TableKey, Window

_rows = mo_iscp_iterations.c


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """What one consumer made of an iteration."""

    job_name: str
    job_id: int
    rows_upserted: int = 0
    rows_deleted: int = 0
    rows_skipped: int = 0
    seconds: float = 0.0
    error_code: int = 0
    error_msg: str = ""


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """One iteration as the log has it."""

    id: int
    table: TableKey
    table_id: int
    job_names: tuple[str, ...]
    window: Window
    kind: IterationKind
    run_id: str
    session_id: str | None
    attempt: int
    rows_scanned: int | None
    bytes_scanned: int | None
    seconds: float | None
    start_at: datetime
    heartbeat_at: datetime | None
    end_at: datetime | None
    consumers: tuple[ConsumerRecord, ...] = ()


class Iterations:
    """The iterations of the log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def start(
        self,
        table: Table,
        window: Window,
        job_names: Sequence[str],
        *,
        kind: IterationKind,
        run_id: str,
        attempt: int,
        now: datetime,
        session_id: str | None = None,
    ) -> int:
        """Open an iteration and return its id."""
        with self._database.touch() as connection:
            result = connection.execute(
                insert(mo_iscp_iterations).values(
                    account_id=table.key.account,
                    table_id=table.table_id,
                    job_names=json.dumps(list(job_names)),
                    from_ts=str(window.start),
                    to_ts=str(window.end),
                    kind=kind,
                    run_id=run_id,
                    session_id=session_id,
                    attempt=attempt,
                    start_at=now,
                    heartbeat_at=now,
                )
            )
            key = result.inserted_primary_key
            assert key is not None
            return key[0]

    def heartbeat(self, iteration_id: int, now: datetime) -> None:
        """Say that an open iteration is alive."""
        with self._database.touch() as connection:
            connection.execute(
                update(mo_iscp_iterations)
                .where(_rows.id == iteration_id, _rows.end_at.is_(None))
                .values(heartbeat_at=now)
            )

    def finish(
        self,
        iteration_id: int,
        *,
        now: datetime,
        kind: IterationKind | None = None,
        rows_scanned: int | None = None,
        bytes_scanned: int | None = None,
        seconds: float | None = None,
        consumers: Iterable[ConsumerRecord] = (),
        error: str | None = None,
    ) -> None:
        """Close an iteration with what its consumers did; a second call changes nothing."""
        with self._database.touch() as connection:
            # Locked, so that of two calls at once the second one finds it closed.
            parent = connection.execute(
                select(mo_iscp_iterations)
                .where(_rows.id == iteration_id, _rows.end_at.is_(None))
                .with_for_update()
            ).one_or_none()
            if parent is None:
                return
            done = list(consumers)
            errors = {
                record.job_name: {"code": record.error_code, "msg": record.error_msg}
                for record in done
                if record.error_code
            }
            if error:
                errors["*"] = {"code": 1, "msg": error}
            connection.execute(
                update(mo_iscp_iterations)
                .where(_rows.id == iteration_id)
                .values(
                    end_at=now,
                    kind=kind or parent.kind,
                    rows_scanned=rows_scanned,
                    bytes_scanned=bytes_scanned,
                    seconds=seconds,
                    error_json=json.dumps(errors) if errors else None,
                    rows_upserted=sum(record.rows_upserted for record in done),
                    rows_deleted=sum(record.rows_deleted for record in done),
                    rows_skipped=sum(record.rows_skipped for record in done),
                )
            )
            if done:
                connection.execute(
                    insert(mo_iscp_iterations),
                    [_consumer_values(parent, record, now) for record in done],
                )

    def open(self) -> list[IterationRecord]:
        """Return the iterations that have not ended."""
        with self._database.read() as connection:
            return _read(connection, _iterations().where(_rows.end_at.is_(None)))

    def list(
        self, *, account: str | None = None, table: TableKey | None = None, limit: int = 50
    ) -> list[IterationRecord]:
        """Return the newest iterations first, with their consumers."""
        query = _iterations().order_by(_rows.id.desc()).limit(limit)
        if account is not None:
            query = query.where(_rows.account_id == account)
        if table is not None:
            query = query.where(
                iscp_tables.c.account_id == table.account,
                iscp_tables.c.db_name == table.db,
                iscp_tables.c.table_name == table.table,
            )
        with self._database.read() as connection:
            return _read(connection, query)

    def delete_ended_before(self, before: datetime, keep_per_table: int) -> int:
        """Delete old iterations beyond the newest ones of each table; returns how many."""
        rank = (
            select(
                _rows.id,
                func.row_number()
                .over(partition_by=_rows.table_id, order_by=_rows.id.desc())
                .label("rank"),
            )
            .where(_rows.iteration_id.is_(None))
            .subquery()
        )
        with self._database.touch() as connection:
            old = list(
                connection.scalars(
                    select(_rows.id)
                    .join(rank, rank.c.id == _rows.id)
                    .where(_rows.end_at < before, rank.c.rank > keep_per_table)
                )
            )
            for start in range(0, len(old), 500):
                some = old[start : start + 500]
                connection.execute(
                    delete(mo_iscp_iterations).where(
                        _rows.id.in_(some) | _rows.iteration_id.in_(some)
                    )
                )
            return len(old)


def _consumer_values(parent: Row[Any], record: ConsumerRecord, now: datetime) -> dict[str, Any]:
    error = {"code": record.error_code, "msg": record.error_msg} if record.error_code else None
    return {
        "iteration_id": parent.id,
        "account_id": parent.account_id,
        "table_id": parent.table_id,
        "job_names": json.dumps([record.job_name]),
        "job_id": record.job_id,
        "from_ts": parent.from_ts,
        "to_ts": parent.to_ts,
        "kind": parent.kind,
        "run_id": parent.run_id,
        "attempt": parent.attempt,
        "rows_upserted": record.rows_upserted,
        "rows_deleted": record.rows_deleted,
        "rows_skipped": record.rows_skipped,
        "seconds": record.seconds,
        "error_json": json.dumps(error) if error else None,
        "start_at": parent.start_at,
        "end_at": now,
    }


def _iterations():
    return (
        select(mo_iscp_iterations, iscp_tables.c.db_name, iscp_tables.c.table_name)
        .join(iscp_tables, iscp_tables.c.table_id == _rows.table_id)
        .where(_rows.iteration_id.is_(None))
    )


def _read(connection: Connection, query: Any) -> list[IterationRecord]:
    parents = list(connection.execute(query))
    consumers: dict[int, list[ConsumerRecord]] = {row.id: [] for row in parents}
    for start in range(0, len(parents), 500):
        ids = [row.id for row in parents[start : start + 500]]
        children = select(mo_iscp_iterations).where(_rows.iteration_id.in_(ids)).order_by(_rows.id)
        for row in connection.execute(children):
            consumers[row.iteration_id].append(_to_consumer(row))
    return [_to_iteration(row, tuple(consumers[row.id])) for row in parents]


def _to_consumer(row: Row[Any]) -> ConsumerRecord:
    error = json.loads(row.error_json) if row.error_json else {}
    return ConsumerRecord(
        job_name=json.loads(row.job_names)[0],
        job_id=row.job_id,
        rows_upserted=row.rows_upserted,
        rows_deleted=row.rows_deleted,
        rows_skipped=row.rows_skipped,
        seconds=row.seconds,
        error_code=error.get("code", 0),
        error_msg=error.get("msg", ""),
    )


def _to_iteration(row: Row[Any], consumers: tuple[ConsumerRecord, ...]) -> IterationRecord:
    return IterationRecord(
        id=row.id,
        table=TableKey(row.account_id, row.db_name, row.table_name),
        table_id=row.table_id,
        job_names=tuple(json.loads(row.job_names)),
        window=Window(TS.parse(row.from_ts), TS.parse(row.to_ts)),
        kind=IterationKind(row.kind),
        run_id=row.run_id,
        session_id=row.session_id,
        attempt=row.attempt,
        rows_scanned=row.rows_scanned,
        bytes_scanned=row.bytes_scanned,
        seconds=row.seconds,
        start_at=row.start_at,
        heartbeat_at=row.heartbeat_at,
        end_at=row.end_at,
        consumers=consumers,
    )

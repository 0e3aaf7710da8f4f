"""Source tables in the log."""

from __future__ import annotations

import json
from datetime import datetime

from sqlalchemy import Connection, delete, exists, insert, select, update

from iscp_dagster.errors import UnknownTable, UsageError
from iscp_dagster.joblog.database import Database
from iscp_dagster.joblog.rows import to_table
from iscp_dagster.joblog.schema import iscp_tables, mo_iscp_iterations, mo_iscp_log
from iscp_dagster.rules.model import Table, TableKey


class Tables:
    """The live tables of the log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, key: TableKey, *, uri: str, pk: tuple[str, ...], delta_id: str, now: datetime
    ) -> bool:
        """Record a table; False when it is recorded already, an error when as something else."""
        with self._database.write() as write:
            known = find_table(write.connection, key)
            if known is not None:
                if (known.uri, known.pk, known.delta_id) != (uri, pk, delta_id):
                    raise UsageError(
                        f"{key} is recorded already, with uri {known.uri} and key "
                        f"{','.join(known.pk)}",
                        cure="`iscp table drop` it first",
                    )
                return False
            write.connection.execute(
                insert(iscp_tables).values(
                    account_id=key.account,
                    db_name=key.db,
                    table_name=key.table,
                    uri=uri,
                    pk_columns=json.dumps(list(pk)),
                    delta_id=delta_id,
                    added_at=now,
                )
            )
            return True

    def get(self, key: TableKey) -> Table:
        """Return a live table.

        Raises:
            UnknownTable: there is none of that name.
        """
        with self._database.read() as connection:
            return need_table(connection, key)

    def list(self, account: str | None = None) -> list[Table]:
        """Return the live tables, ordered by key."""
        query = select(iscp_tables).where(iscp_tables.c.drop_at.is_(None))
        if account is not None:
            query = query.where(iscp_tables.c.account_id == account)
        query = query.order_by(
            iscp_tables.c.account_id, iscp_tables.c.db_name, iscp_tables.c.table_name
        )
        with self._database.read() as connection:
            return [to_table(row) for row in connection.execute(query)]

    def drop(self, key: TableKey, now: datetime) -> bool:
        """Forget a table (its data stays); refused while jobs live on it."""
        with self._database.write() as write:
            known = find_table(write.connection, key)
            if known is None:
                return False
            in_use = write.connection.scalar(
                select(
                    exists().where(
                        mo_iscp_log.c.account_id == key.account,
                        mo_iscp_log.c.table_id == known.table_id,
                        mo_iscp_log.c.drop_at.is_(None),
                    )
                )
            )
            if in_use:
                raise UsageError(f"{key} still has jobs", cure="`iscp unregister` them first")
            write.connection.execute(
                update(iscp_tables)
                .where(iscp_tables.c.table_id == known.table_id)
                .values(drop_at=now)
            )
            return True

    def forget_dropped(self, before: datetime) -> int:
        """Delete dropped tables that no row points at any more; returns how many."""
        in_use = select(mo_iscp_log.c.table_id).union(select(mo_iscp_iterations.c.table_id))
        statement = delete(iscp_tables).where(
            iscp_tables.c.drop_at < before, iscp_tables.c.table_id.not_in(in_use)
        )
        with self._database.touch() as connection:
            return connection.execute(statement).rowcount


def find_table(connection: Connection, key: TableKey) -> Table | None:
    """Look up a live table inside a transaction."""
    row = connection.execute(
        select(iscp_tables).where(
            iscp_tables.c.account_id == key.account,
            iscp_tables.c.db_name == key.db,
            iscp_tables.c.table_name == key.table,
            iscp_tables.c.drop_at.is_(None),
        )
    ).one_or_none()
    return None if row is None else to_table(row)


def need_table(connection: Connection, key: TableKey) -> Table:
    """Look up a live table that has to be there."""
    table = find_table(connection, key)
    if table is None:
        raise UnknownTable(f"table {key} is not in the log")
    return table

"""What a log asks of its database: statements, rows fetched, work done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event

from iscp_dagster.joblog import JobLog


@dataclass
class Observed:
    """Statements with their parameters, and how many rows they fetched."""

    statements: list[tuple[str, Any]] = field(default_factory=list)
    rows: int = 0
    steps: int = 0
    """SQLite only: steps of its virtual machine, in hundreds; a row looked at costs several."""


@contextmanager
def observed(log: JobLog) -> Iterator[Observed]:
    """Watch the database while a log is used."""
    engine = log._database.engine
    seen = Observed()
    sqlite = engine.dialect.name == "sqlite"

    def count_row(_cursor: object, row: tuple[Any, ...]) -> tuple[Any, ...]:
        seen.rows += 1
        return row

    def count_step() -> int:
        seen.steps += 1
        return 0

    def before(_connection: object, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if not statement.startswith("BEGIN"):
            seen.statements.append((statement, parameters))
        if sqlite:
            cursor.row_factory = count_row
            cursor.connection.set_progress_handler(count_step, 100)

    def after(_connection: object, cursor: Any, statement: str, *_: Any) -> None:
        # psycopg2 has fetched all rows by now and says how many.
        if not sqlite and statement.startswith("SELECT"):
            seen.rows += cursor.rowcount

    event.listen(engine, "before_cursor_execute", before)
    event.listen(engine, "after_cursor_execute", after)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", before)
        event.remove(engine, "after_cursor_execute", after)
        engine.dispose()


def explain(log: JobLog, statement: str, parameters: Any) -> str:
    """How the database goes about a statement."""
    with log._database.read() as connection:
        if connection.dialect.name == "sqlite":
            plan = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, parameters)
            return "\n".join(row[3] for row in plan)
        plan = connection.exec_driver_sql("EXPLAIN (FORMAT JSON) " + statement, parameters)
        return json.dumps(plan.scalar_one(), indent=1)

"""A home with a log and small Delta tables: what tests of commands and definitions start from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from iscp_dagster import api
from iscp_dagster.joblog import JobLog
from iscp_dagster.settings import Settings
from iscp_dagster_tests.conftest import settings_in
from iscp_dagster_tests.joblog.databases import dump, execute

NOW = datetime(2026, 11, 18, 5, 49, 0, 123000, tzinfo=UTC)
ITEMS = {
    "id": [1, 2, 3],
    "section": ["tools", "toys", "tools"],
    "name": ["hammer", "robot", "saw"],
    "price": [9.5, 20.0, 14.0],
}
_FEED = {"delta.enableChangeDataFeed": "true"}


def make_delta(path: Path, *, feed: bool = True, rows: dict[str, list[Any]] | None = None) -> Path:
    """Write a Delta table of three items, with its change data feed on or off."""
    write_deltalake(path, pa.table(rows or ITEMS), configuration=_FEED if feed else {})
    return path


@dataclass(frozen=True)
class Shop:
    """A home, its log, and a folder to put tables into."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def settings(self) -> Settings:
        return settings_in(self.home)

    def open_log(self) -> JobLog:
        return JobLog.open(self.settings)

    def add_table(
        self, name: str = "shop.items", *, account: str = "sys", feed: bool = True
    ) -> Path:
        """Make a Delta table and record it."""
        path = make_delta(self.folder / "tables" / account / name, feed=feed)
        with self.open_log() as log:
            assert api.add_table(
                name, uri=str(path), pk=["id"], account=account, enable_cdf=not feed, log=log
            )
        return path

    def register(
        self, job: str, spec: dict[str, Any], *, table: str = "shop.items", account: str = "sys"
    ) -> None:
        with self.open_log() as log:
            assert api.register_job(table, job, spec, account=account, log=log)

    def contents(self) -> dict[str, list[tuple[Any, ...]]]:
        """All rows of the log; nothing when there is none."""
        return dump(self.settings.log_url) if (self.home / "iscp.db").exists() else {}

    def execute(self, statement: str, **parameters: Any) -> None:
        """Change the log behind the back of everything."""
        execute(self.settings.log_url, statement, **parameters)


def version_of(path: Path) -> int:
    """The newest version of a Delta table."""
    return DeltaTable(path).version()

"""The words of the system as values.

A *TS* is a point in a table's history: the Delta commit version, and the time it is known by.
Versions order; times only label. A *window* (start, end] is a stretch of that history; each
version belongs to exactly one of two adjoining windows. A *job* is one async index on one table;
its *generation* (`job_id`) grows each time the name is registered again. A *history* is what a
probe found out about a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from iscp_dagster.errors import UsageError
from iscp_dagster.rules.spec import JobSpec

DEFAULT_ACCOUNT = "sys"

_TS_TEXT = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z-(?P<version>0|[1-9]\d*)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}", re.ASCII)


def check_name(field_name: str, value: str) -> str:
    """Return `value` if it is a fit name for an account, db, table or job.

    Names become parts of paths, asset keys and tags, so they are letters, digits, `_` and `-`.
    """
    if not _NAME.fullmatch(value):
        raise UsageError(
            f"{field_name}: {value!r} is not a name",
            cure="use letters, digits, _ and - (at most 128, not starting with -)",
        )
    return value


@dataclass(frozen=True, slots=True)
class TS:
    """A point in a table's history; `TS.zero()` is before the first commit."""

    version: int
    time: datetime = field(default=_EPOCH, compare=False)

    @staticmethod
    def zero() -> TS:
        """Return the point before the first commit, written `0`."""
        return _ZERO

    @staticmethod
    def parse(text: str) -> TS:
        """Read `0` or `2026-11-18T05:49:00.123Z-42`."""
        if text == "0":
            return _ZERO
        found = _TS_TEXT.fullmatch(text)
        if not found:
            raise UsageError(
                f"timestamp: {text!r} is not a TS",
                cure="write 0 or one like 2026-11-18T05:49:00.123Z-42 (commit time - version)",
            )
        try:
            time = datetime.fromisoformat(found["time"]).replace(tzinfo=UTC)
        except ValueError as error:
            raise UsageError(f"timestamp: {text!r} is not a TS: {error}") from error
        return TS(int(found["version"]), time)

    @property
    def is_zero(self) -> bool:
        """Whether this is before the first commit."""
        return self.version < 0

    def __str__(self) -> str:
        if self.is_zero:
            return "0"
        time = self.time.astimezone(UTC)
        return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03d}Z-{self.version}"

    def __lt__(self, other: TS) -> bool:
        return self.version < other.version

    def __le__(self, other: TS) -> bool:
        return self.version <= other.version


_ZERO = TS(-1)


@dataclass(frozen=True, slots=True)
class Window:
    """The versions after `start` up to and including `end`."""

    start: TS
    end: TS

    @staticmethod
    def parse(text: str) -> Window:
        """Read a partition key `<from_ts>_<to_ts>`."""
        start, separator, end = text.partition("_")
        if not separator:
            raise UsageError(
                f"window: {text!r} is not a window", cure="write <from_ts>_<to_ts>, as in the UI"
            )
        window = Window(TS.parse(start), TS.parse(end))
        if window.end < window.start:
            raise UsageError(f"window: {text!r} ends before it starts")
        return window

    @property
    def partition_key(self) -> str:
        """The Dagster partition key of this window."""
        return f"{self.start}_{self.end}"

    @property
    def versions(self) -> int:
        """How many versions the window holds."""
        return self.end.version - self.start.version

    def __str__(self) -> str:
        start = "0" if self.start.is_zero else f"v{self.start.version}"
        return f"({start}, v{self.end.version}]"


@dataclass(frozen=True, slots=True, order=True)
class TableKey:
    """Account, database and table: who owns what."""

    account: str
    db: str
    table: str

    @staticmethod
    def parse(text: str, account: str = DEFAULT_ACCOUNT) -> TableKey:
        """Read `DB.TABLE`."""
        db, separator, table = text.partition(".")
        if not separator:
            raise UsageError(f"table: {text!r} is not a table", cure="write DB.TABLE")
        return TableKey(
            check_name("account", account), check_name("db", db), check_name("table", table)
        )

    def job(self, name: str) -> JobKey:
        """Return the key of this table's job `name`."""
        return JobKey(self.account, self.db, self.table, check_name("job", name))

    @property
    def asset_path(self) -> tuple[str, ...]:
        """The path of the Dagster asset key."""
        return (self.account, self.db, self.table)

    def __str__(self) -> str:
        return f"{self.account}/{self.db}/{self.table}"


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """One index by name; says nothing about which generation."""

    account: str
    db: str
    table: str
    name: str

    @property
    def table_key(self) -> TableKey:
        """The key of the table the job indexes."""
        return TableKey(self.account, self.db, self.table)

    @property
    def asset_path(self) -> tuple[str, ...]:
        """The path of the Dagster asset key."""
        return (self.account, self.db, self.table, self.name)

    def __str__(self) -> str:
        return f"{self.account}/{self.db}/{self.table}/{self.name}"


class JobState(StrEnum):
    """Where a job's last iteration stands."""

    PENDING = "pending"
    RUNNING = "running"
    CANCELED = "canceled"
    ERROR = "error"
    COMPLETED = "completed"


class Stage(StrEnum):
    """How far a job's index is: nothing yet, first sync under way, following the table."""

    INIT = "init"
    BACKFILL = "backfill"
    TAIL = "tail"


class IterationKind(StrEnum):
    """What an iteration reads."""

    SNAPSHOT = "snapshot"
    TAIL = "tail"
    CATCH_UP = "catch-up"
    BACKFILL = "backfill"
    NO_OP = "no-op"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The outcome of a job's latest iteration."""

    from_ts: TS | None = None
    to_ts: TS | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    run_id: str = ""
    error_code: int = 0
    error_msg: str = ""
    progress: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A source Delta table as the log knows it."""

    key: TableKey
    table_id: int
    uri: str
    pk: tuple[str, ...]
    delta_id: str
    added_at: datetime


@dataclass(frozen=True, slots=True)
class Job:
    """One row of `mo_iscp_log`: a generation of an index and how far it is."""

    key: JobKey
    job_id: int
    table_id: int
    spec: JobSpec
    state: JobState
    watermark: TS
    stage: Stage
    status: JobStatus
    attempt: int
    next_attempt_at: datetime | None
    live_job_id: int
    lsn: int
    change_seq: int
    create_at: datetime
    drop_at: datetime | None = None
    paused_at: datetime | None = None

    @property
    def is_new(self) -> bool:
        """Whether the index has never been synced."""
        return self.watermark.is_zero


@dataclass(frozen=True, slots=True)
class Commit:
    """One Delta commit as the probe read it from the log."""

    version: int
    time: datetime
    data_change: bool
    """False for OPTIMIZE, property changes and the like: no change to any index."""
    bytes: int
    """Bytes of data files the commit added, removed or wrote as change data."""

    @property
    def ts(self) -> TS:
        """The commit as a point in history."""
        return TS(self.version, self.time)


@dataclass(frozen=True, slots=True)
class History:
    """What a probe found: the table's newest version and the commits it read on the way there.

    `commits` is ascending and without holes; it ends at `head` and starts no later than the
    version after the `since` that the probe was asked for, unless history is lost: then it starts
    at `first_version`, the oldest commit that is still there.
    """

    head: TS
    first_version: int
    commits: tuple[Commit, ...] = ()

    def __iter__(self) -> Iterator[Commit]:
        return iter(self.commits)


@dataclass(frozen=True, slots=True)
class TableMissing:
    """The table has no Delta log any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class TableReplaced:
    """Another Delta table lives at the uri now."""

    delta_id: str


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """The table could not be asked this time; its jobs are kept for the next tick."""

    reason: str


Probed = History | TableMissing | TableReplaced | ProbeFailed


@dataclass(frozen=True, slots=True)
class InFlight:
    """An iteration that Dagster has queued or started and not yet ended."""

    run_id: str
    table: TableKey
    window: Window
    job_names: tuple[str, ...]
    kind: IterationKind
    attempt: int
    started: bool = False
    job_ids: tuple[int, ...] = ()
    """The generations in it, where known: a late run of an old one is no run of the new one."""

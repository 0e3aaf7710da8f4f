"""What every consumer is: the code that applies one window of changes to one index.

A *place* is where one generation of an index lives. The life of a consumer within an iteration:
`prepare` (make or open the index, fix what it is built from), `apply` (one window, one commit),
`watermark` (what the store says, without Spark), and at the end of the index, `drop`.

Consumers are importable without Spark: registration checks specs with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from iscp_dagster.errors import UsageError
from iscp_dagster.rules.filters import Filter, parse_filter
from iscp_dagster.rules.model import TS, JobKey, Table, Window
from iscp_dagster.rules.spec import JobSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from iscp_dagster.sources.changes import Changes

RESERVED = ("_ts", "_change_type", "_commit_version", "_commit_timestamp")
RESERVED_PREFIX = "_iscp_"


class ColumnFacts(Protocol):
    """A column of a source table: its name, and its type as Spark writes it."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...


class SourceFacts(Protocol):
    """What a consumer needs to know about a source table."""

    @property
    def columns(self) -> Sequence[ColumnFacts]: ...


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """One generation of an index: whose it is, and where."""

    key: JobKey
    job_id: int
    uri: str


@dataclass(frozen=True, slots=True)
class ConsumerResult:
    """What one consumer did with one window."""

    watermark: TS
    """Where the index stands now."""
    rows_upserted: int = 0
    rows_deleted: int = 0
    rows_skipped: int = 0
    """Changed rows that touch nothing of this index."""
    rows_refused: int = 0
    """Rows that can't be indexed (a vector of the wrong size, say); the others went in."""
    refused_keys: tuple[str, ...] = ()
    """The keys of the first ones refused."""
    row_count: int | None = None
    """Rows in the index afterwards."""
    seconds: float = 0.0
    no_op: bool = False
    """The index stood at the window's end already."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """An index beside what a build from scratch would hold, at the index's watermark."""

    watermark: TS
    rows_expected: int
    rows_found: int
    sampled: int
    """How many rows the checksums are over."""
    same: bool
    """Whether the checksums of the sample agree."""
    rows_refused: int = 0
    """Rows of the table that can't be in the index, and are not expected there."""


class Consumer(ABC):
    """Applies windows of changes to one index; one object per job and iteration."""

    type: ClassVar[str]
    """The name a spec calls it by."""
    needs_before: ClassVar[bool] = False
    """Whether `apply` reads what rows were before the window."""
    kinds: ClassVar[frozenset[str]] = frozenset()
    """What the index is stored in, as the kinds of its Dagster asset."""

    def __init__(self, place: IndexPlace, spark: SparkSession | None = None) -> None:
        self.place = place
        self._spark = spark

    @classmethod
    @abstractmethod
    def check_spec(cls, spec: JobSpec, facts: SourceFacts) -> None:
        """Raise `UsageError`, naming the field, if the spec does not fit the table."""

    @classmethod
    @abstractmethod
    def source_columns(
        cls, spec: JobSpec, pk: Sequence[str], facts: SourceFacts
    ) -> tuple[str, ...]:
        """Return the columns of the table that an index of this spec reads."""

    @classmethod
    def example_query(cls, spec: JobSpec, uri: str) -> str:
        """Return an example of how to ask the index, shown with its asset."""
        return f"-- stored at {uri}"

    @abstractmethod
    def prepare(self, spec: JobSpec, table: Table, facts: SourceFacts) -> None:
        """Make the index if it is not there; read what it is built from.

        Raises:
            SourceColumnChanged: The table no longer has what the index was built from.
        """

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns of the table that this index reads, fixed when it was made."""

    @abstractmethod
    def apply(self, changes: Changes, window: Window) -> ConsumerResult:
        """Apply one window and move the watermark, in one commit of the store.

        A window that is applied already changes nothing. A snapshot replaces the index.

        Raises:
            IndexBehindWindow: The index stands before the window's start.
            IndexContended: Another writer moved the index meanwhile.
        """

    def lineage(self) -> Mapping[str, tuple[str, ...]]:
        """Return the index's columns, each with the table's columns that it is made from."""
        return {}

    def compare(self, changes: Changes) -> Comparison | None:
        """Compare the index with a snapshot of its table at its watermark; None where it can't."""
        return None

    @abstractmethod
    def watermark(self) -> TS:
        """Return where the index stands, as the store itself says; 0 when there is none."""

    def row_count(self) -> int | None:
        """Return the rows in the index, as the store itself says; None where it does not tell."""
        return None

    @abstractmethod
    def drop(self) -> None:
        """Remove the index with its files; nothing to remove is fine."""

    @property
    def session(self) -> SparkSession | None:
        """The Spark session this consumer commits with, for whoever has to interrupt it."""
        return self._spark

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what the consumer holds, its session above all; also ends what still runs."""


def find_column(facts: SourceFacts, name: str) -> ColumnFacts | None:
    """Return the column of that name, without regard to case as in Spark."""
    return next((c for c in facts.columns if c.name.lower() == name.lower()), None)


def resolve_columns(
    field: str, names: Sequence[str], facts: SourceFacts
) -> tuple[ColumnFacts, ...]:
    """Return the named columns; one that the table has not, or named twice, is refused."""
    found: list[ColumnFacts] = []
    for name in names:
        column = find_column(facts, name)
        if column is None:
            known = ", ".join(c.name for c in facts.columns)
            raise UsageError(f"{field}: no column {name!r}", cure=f"the table has {known}")
        if column in found:
            raise UsageError(f"{field}: {column.name!r} is named twice")
        if column.name.lower() in RESERVED or column.name.lower().startswith(RESERVED_PREFIX):
            raise UsageError(f"{field}: {column.name!r} is a reserved name")
        found.append(column)
    return tuple(found)


def check_options(spec: JobSpec, known: Sequence[str], required: Sequence[str] = ()) -> None:
    """Refuse options the consumer does not know, and the lack of those it can't do without."""
    for name in spec.options:
        if name not in known:
            raise UsageError(
                f"options: {spec.type} has no option {name!r}", cure=f"it has {', '.join(known)}"
            )
    for name in required:
        if not spec.options.get(name):
            raise UsageError(f"{name}: {spec.type} needs it", cure=f"write --option {name}=…")


def split_names(field: str, text: str) -> tuple[str, ...]:
    """Read a list of names, separated by commas; `` `a,b` `` is one name."""
    return tuple(unquote(part) for part in split_list(field, text))


def split_list(field: str, text: str) -> tuple[str, ...]:
    """Split at the commas that are not within backquotes."""
    parts: list[str] = []
    current, quoted = "", False
    for char in text + ",":
        quoted ^= char == "`"
        if char == "," and not quoted:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    if quoted or not all(parts):
        raise UsageError(f"{field}: {text!r} is not a list", cure="write a,b")
    return tuple(parts)


def unquote(name: str) -> str:
    """Return the name that a possibly backquoted text stands for."""
    if len(name) >= 2 and name.startswith("`") and name.endswith("`"):
        return name[1:-1].replace("``", "`")
    return name


def check_sortable(field: str, found: Sequence[ColumnFacts]) -> None:
    """Refuse columns whose type has no order."""
    for column in found:
        if column.type.startswith(("array", "map", "struct", "variant", "binary")):
            raise UsageError(f"{field}: {column.name!r} is {column.type}, which has no order")


def parse_where(spec: JobSpec, facts: SourceFacts) -> Filter | None:
    """Parse the spec's `where` over the table's columns; None where there is none."""
    text = spec.options.get("where")
    if text is None:
        return None
    return parse_filter(text, [column.name for column in facts.columns])

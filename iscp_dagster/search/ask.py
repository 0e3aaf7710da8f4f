"""One index, one question: opening what answers it, with the tail where that is wanted.

An *index* is a live job with its table and the place of its store. What the store says of itself
counts; the log only tells where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iscp_dagster.errors import (
    IndexBuilding,
    IndexMissing,
    IndexUnreadable,
    JobInError,
    UsageError,
)
from iscp_dagster.rules.model import Job, JobState, Table
from iscp_dagster.search.result import Answer

if TYPE_CHECKING:
    from iscp_dagster.search.tail import Tail
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


@dataclass(frozen=True, slots=True)
class Index:
    """A live index."""

    job: Job
    table: Table
    uri: str


def ask(index: Index, question: Question) -> Answer:
    """Ask one index.

    Raises:
        UsageError: The question does not fit the index.
        IndexBuilding: It can't answer yet.
        IndexUnreadable: Its files can't be read.
    """
    job = index.job
    if question.vector is not None and job.spec.type != "vector":
        raise UsageError(f"vector: {job.key} is a {job.spec.type} index and has no vectors")
    if job.spec.type in DELTA_TYPES:
        return _ask_delta(index, question)
    if job.spec.type in LANCE_TYPES:
        return _ask_lance(index, question)
    raise UsageError(
        f"search: {job.key} is a {job.spec.type} index",
        cure=f"known are {', '.join((*LANCE_TYPES, *DELTA_TYPES))}",
    )


def open_reader(index: Index) -> LanceReader:
    """Open a Lance index where it stands; one that was never synced says why it can't answer."""
    from iscp_dagster.stores.lance_search import LanceReader

    try:
        return LanceReader.open(index.uri)
    except (IndexBuilding, IndexMissing) as error:
        raise _not_yet(index.job) from error


def tail_of(index: Index, reader: LanceReader) -> Tail | None:
    """Read what a Lance index does not hold yet; None when it holds everything."""
    from iscp_dagster.search.tail import read_tail

    return read_tail(index.table, reader.watermark, reader.build)


@contextmanager
def with_tail_of(index: Index, reader: LanceReader, tail: Tail | None) -> Iterator[LanceReader]:
    """Open a Lance index together with its tail."""
    if tail is None:
        yield reader
        return
    from iscp_dagster.search.fresh_lance import with_tail

    with with_tail(index.job, reader, tail) as merged:
        yield merged


def find(reader: LanceReader, q: Question) -> Answer:
    """Ask a Lance index that is open."""
    from iscp_dagster.search.lance import find_near, find_text

    if reader.build["type"] == "fulltext":
        return find_text(reader, q.query, q.k, q.where, q.columns)
    return find_near(reader, q.query, q.vector, q.k, q.where, q.columns)


@contextmanager
def readable(indexes: Sequence[Index], *errors: type[Exception]) -> Iterator[None]:
    """Turn what a store's library raises when it can't read into one line."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException, *errors) as error:
        names = ", ".join(str(index.job.key) for index in indexes)
        reason = " ".join(str(error).split()).split(", /", 1)[0]
        raise IndexUnreadable(f"{names} can't be read ({reason})") from error


def why(job: Job) -> str:
    """Say what a job's latest attempt failed with."""
    return f"{job.status.error_msg} ({job.status.error_code})"


def _ask_delta(index: Index, q: Question) -> Answer:
    from deltalake.exceptions import DeltaError

    from iscp_dagster.search.delta import DeltaReader

    with readable([index], DeltaError):
        reader = DeltaReader.open(index.uri, index.job.live_job_id)
    if reader is None:
        raise _not_yet(index.job)
    overlay = None
    if q.fresh:
        from iscp_dagster.search.fresh_delta import overlay_of
        from iscp_dagster.search.tail import read_tail

        tail = read_tail(index.table, reader.watermark, reader.build)
        overlay = None if tail is None else overlay_of(reader, tail)
    return reader.find(q.query, q.k, q.where, q.columns, overlay)


def _ask_lance(index: Index, q: Question) -> Answer:
    with readable([index]):
        reader = open_reader(index)
        if not q.fresh:
            return find(reader, q)
    with (
        with_tail_of(index, reader, tail_of(index, reader)) as merged,
        readable([index]),
    ):
        # A clone counts versions of its own: what was asked is the index's.
        return replace(find(merged, q), store_version=reader.version)


def _not_yet(job: Job) -> IndexBuilding | JobInError:
    """Say why there is nothing to ask."""
    if job.state is JobState.ERROR:
        return JobInError(f"{job.key} failed before its first sync was done: {why(job)}")
    text = f"{job.key} is still building"
    if job.status.progress:
        text += f" ({job.status.progress})"
    if job.paused_at is not None:
        return IndexBuilding(f"{text} and is paused", cure="`iscp resume` lets it go on")
    if job.status.error_code:
        text += f", its latest attempt failed: {why(job)}"
    return IndexBuilding(text)

"""Putting one index in order: few files, few segments, centroids that fit today's vectors.

Nothing that is asked or synced meanwhile has to wait. A Lance index gets its fragments compacted,
its segments merged or built anew, and loses the versions that no query reads any more. A Delta
index gets its small files rewritten into larger ones, as many as a build from scratch would make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from iscp_dagster.errors import IndexBuilding, IndexUnreadable, UsageError
from iscp_dagster.rules.model import Job
from iscp_dagster.stores.paths import index_uri

if TYPE_CHECKING:
    from deltalake import DeltaTable

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Span:
    """A number before and after."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class OptimizeReport:
    """What was put in order."""

    job: str
    type: str
    store_version: int
    """The version of the index's own store afterwards."""
    fragments: Span
    """Files with rows."""
    bytes: Span
    """What the newest version's files take."""
    seconds: float
    segments: Span | None = None
    """Parts of the text or vector index; None where the index has none."""
    removed_versions: int = 0
    removed_bytes: int = 0
    contended: bool = False
    """Windows came in between again and again: some of it is left to the next time."""

    def __str__(self) -> str:
        parts = [] if self.segments is None else [_counted("segments", self.segments)]
        parts.append(_counted("fragments", self.fragments))
        parts.append(f"{_size(self.bytes.before)} → {_size(self.bytes.after)}")
        if self.removed_versions:
            parts.append(f"{self.removed_versions} old versions removed")
        text = f"{self.job}: {', '.join(parts)} in {self.seconds:.1f} s"
        if self.contended:
            text += "; windows kept coming in, run it again for the rest"
        return text


def optimize_index(
    job: Job, warehouse: str, *, retrain: bool = False, tell: Tell = lambda step: None
) -> OptimizeReport:
    """Put a job's live index in order.

    Args:
        job: Whose index.
        warehouse: Where indexes are.
        retrain: Build what makes a Lance index fast anew from its rows, however tidy it is.
        tell: Called with what comes next, before each step.

    Raises:
        IndexBuilding: It has never been synced.
        IndexUnreadable: Its files can't be read or written.
        UsageError: Indexes of its type have nothing to put in order here.
    """
    from iscp_dagster.consumers.delta import DeltaConsumer
    from iscp_dagster.consumers.lance_base import LanceConsumer
    from iscp_dagster.consumers.registry import get_consumer_class

    uri = index_uri(warehouse, job.key, job.live_job_id)
    consumer = get_consumer_class(job.spec.type)
    if issubclass(consumer, LanceConsumer):
        import pyarrow as pa

        try:
            return _optimize_lance(job, uri, retrain, tell)
        except (OSError, pa.ArrowException) as error:
            raise IndexUnreadable(f"{job.key} can't be put in order ({_reason(error)})") from error
    if not issubclass(consumer, DeltaConsumer):
        raise UsageError(
            f"optimize: {job.key} is a {job.spec.type} index, which knows no such thing"
        )
    if retrain:
        raise UsageError(
            f"retrain: {job.key} is a {job.spec.type} index and has nothing to train",
            cure="say optimize without it",
        )
    from deltalake.exceptions import DeltaError

    try:
        return _optimize_delta(job, uri, tell)
    except (DeltaError, OSError) as error:
        raise IndexUnreadable(f"{job.key} can't be put in order ({_reason(error)})") from error


def _optimize_lance(job: Job, uri: str, retrain: bool, tell: Tell) -> OptimizeReport:
    from iscp_dagster.stores.lance_index import LanceIndex
    from iscp_dagster.stores.lance_upkeep import clean, optimize

    index = LanceIndex(uri, job.live_job_id)
    standing = index.standing()
    if standing is None or standing.watermark.is_zero:
        raise IndexBuilding(f"{job.key} is still building")
    started = perf_counter()
    done = optimize(index, retrain=retrain, tell=tell)
    tell("removing old versions")
    cleaned = clean(index)
    return OptimizeReport(
        job=str(job.key),
        type=job.spec.type,
        store_version=done.version,
        fragments=Span(done.before.fragments, done.after.fragments),
        bytes=Span(done.before.bytes, done.after.bytes),
        seconds=perf_counter() - started,
        segments=Span(done.before.segments, done.after.segments),
        removed_versions=cleaned.versions,
        removed_bytes=cleaned.bytes,
        contended=done.contended,
    )


def _optimize_delta(job: Job, uri: str, tell: Tell) -> OptimizeReport:
    """Rewrite small files; a window that commits meanwhile wins."""
    from deltalake import PostCommitHookProperties
    from deltalake.exceptions import CommitFailedError

    from iscp_dagster.search.engine import open_delta
    from iscp_dagster.stores.delta_index import DeltaIndex
    from iscp_dagster.stores.delta_layout import files_for

    standing = DeltaIndex(uri, job.live_job_id).standing()
    if standing is None or standing.watermark.is_zero:
        raise IndexBuilding(f"{job.key} is still building")
    started = perf_counter()
    table = open_delta(uri)
    if "delta.columnMapping.mode" in table.metadata().configuration:
        raise UsageError(
            f"optimize: {job.key} has columns with odd names, which only Spark rewrites",
            cure="run OPTIMIZE on it in Spark",
        )
    before = _sizes(table)
    files = files_for(standing.rows or 0, fine=job.spec.type == "lookup")
    contended = False
    if len(before) > files:
        tell(f"compacting {len(before)} files")
        # Checkpoints and the log are Spark's business, as with every other commit of ours.
        hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        try:
            table.optimize.compact(
                target_size=max(1, sum(before) // files + 1), post_commithook_properties=hooks
            )
        except CommitFailedError:
            contended = True
        table = open_delta(uri)
    after = _sizes(table)
    return OptimizeReport(
        job=str(job.key),
        type=job.spec.type,
        store_version=table.version(),
        fragments=Span(len(before), len(after)),
        bytes=Span(sum(before), sum(after)),
        seconds=perf_counter() - started,
        contended=contended,
    )


def _reason(error: Exception) -> str:
    """Say what went wrong without the places in Lance's own code."""
    return " ".join(str(error).split()).split(", /", 1)[0]


def _sizes(table: DeltaTable) -> Sequence[int]:
    import pyarrow as pa

    actions: Any = pa.table(table.get_add_actions(flatten=True))
    return actions["size_bytes"].to_pylist()


def _counted(what: str, span: Span) -> str:
    return f"{what} {span.before} → {span.after}"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"

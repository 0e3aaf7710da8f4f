"""A Lance index with its tail, as a sync would leave it: on a clone that nobody else sees.

The tail is applied to the clone as an iteration applies a window, and the clone is asked in place
of the index. It stays as long as its tail is warm: the next search only asks. When the tail grows,
the step is applied to the clone that is there.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import getpid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp_dagster.consumers.base import IndexPlace
from iscp_dagster.consumers.json_text import JsonPath
from iscp_dagster.consumers.lance_rows import (
    CONTENT,
    GONE,
    KEPT,
    VECTOR,
    WAS,
    Layout,
    Tally,
    VectorLayout,
    Vectors,
)
from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.errors import IndexMissing, TailUnavailable
from iscp_dagster.rules.model import Job
from iscp_dagster.search.tail import Tail, belonging, same_rows
from iscp_dagster.stores.lance_clone import clone_options, make_clone
from iscp_dagster.stores.lance_index import (
    LanceStanding,
    Staged,
    commit_once,
    read_control,
    stage_batches,
)
from iscp_dagster.stores.lance_open import reading_session
from iscp_dagster.stores.lance_search import LanceReader
from iscp_dagster.stores.lance_segments import TextRecipe, keep_indexed, read_recipes

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset

_STAYED = "_iscp_stayed"
"""A column beside the tail's: whether a row's content is what it was."""
_MOST_STEPS = 8
"""A clone that has grown so often is made anew."""


class _Folder:
    """A folder that goes when nobody needs it any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="iscp-search-"))
        weakref.finalize(self, _remove, self.path, getpid())


@dataclass(frozen=True, slots=True)
class _Merged:
    """A clone that holds a tail."""

    origin: LanceStanding
    reader: LanceReader
    folder: _Folder
    steps: int = 0
    """How often it has grown: each time leaves a segment."""

    def is_of(self, reader: LanceReader) -> bool:
        """Whether it is a clone of just this index, and nobody has tidied it away."""
        return self.origin == reader.standing and self.folder.path.exists()


@contextmanager
def with_tail(job: Job, reader: LanceReader, tail: Tail) -> Iterator[LanceReader]:
    """Open an index together with its tail.

    Raises:
        TailUnavailable: They can't be put together.
    """
    if not tail.touched:
        yield replace(reader, standing=replace(reader.standing, watermark=tail.end))
        return
    with tail.making:
        merged: _Merged | None = tail.made.get(reader.dataset.uri)
        if merged is None or not merged.is_of(reader):
            merged = _grown(job, reader, tail) or _merged(job, reader, tail)
            tail.made[reader.dataset.uri] = merged
            if tail.grown is not None:
                tail.grown[0].made.pop(reader.dataset.uri, None)
    yield merged.reader


def _merged(job: Job, reader: LanceReader, tail: Tail) -> _Merged:
    """Apply a tail to a new clone."""
    folder = _Folder()
    try:
        clone = make_clone(reader, folder.path / "clone")
        return _Merged(reader.standing, _applied(job, reader, clone, tail), folder)
    except OSError as error:
        reason = " ".join(str(error).split()).split(", /", 1)[0]
        raise TailUnavailable(f"{job.key}: its changes can't be merged ({reason})") from error


def _grown(job: Job, reader: LanceReader, tail: Tail) -> _Merged | None:
    """Apply the step of a tail that has grown to the clone from before; None without one."""
    if tail.grown is None:
        return None
    before, step = tail.grown
    merged: _Merged | None = before.made.get(reader.dataset.uri)
    if merged is None or not merged.is_of(reader) or merged.steps == _MOST_STEPS:
        return None
    if not step.touched:
        standing = replace(merged.reader.standing, watermark=step.end)
        return replace(merged, reader=replace(merged.reader, standing=standing))
    try:
        grown = _applied(job, reader, merged.reader.dataset, step)
    except OSError:
        return None  # another thread let the same clone grow, or it is damaged
    return replace(merged, reader=grown, steps=merged.steps + 1)


def _remove(folder: Path, made_by: int) -> None:
    """Remove a folder; a process that was forked leaves it to the one that made it."""
    if getpid() == made_by:
        shutil.rmtree(folder, ignore_errors=True)


def _applied(job: Job, reader: LanceReader, clone: LanceDataset, tail: Tail) -> LanceReader:
    """Commit changes to a clone, as one window.

    Args:
        job: The index's job.
        reader: The index.
        clone: Its clone, at the changes' start.
        tail: The changes.
    """
    import lance

    build, options = reader.build, clone_options(reader)
    rows = tail.rows
    if build["type"] == "vector":
        rows = rows.append_column(_STAYED, [_stayed(tail, build)])
    rows = _with_content(belonging(rows, build["where"]), build)
    if build["type"] == "vector":
        _settle_dimension(clone, rows, build)
    layout, tally = _layout(job, reader, clone), Tally()
    batches = [tally.count(layout.convert(one)) for one in _laid_out(rows, build).to_batches()]
    filled = [batch for batch in batches if batch.num_rows]
    staged = stage_batches(clone.uri, clone.schema, filled, options) if filled else ()
    since = read_control(clone)
    if since is None:
        raise IndexMissing(f"there is no index at {reader.dataset.uri}")
    after = replace(since, watermark=tail.end, sequence=since.sequence + 1)
    changed = commit_once(clone, Staged(staged, tuple(tail.touched)), after, options)
    if build["type"] == "fulltext":
        _index_texts(changed, build)
    opened = lance.dataset(clone.uri, storage_options=options, session=reading_session())
    return LanceReader(opened, replace(after, version=opened.version, rows=opened.count_rows() - 1))


def _layout(job: Job, reader: LanceReader, clone: LanceDataset) -> Layout:
    """Return how rows are laid out in the clone, which also has the vectors that are known."""
    from iscp_dagster.consumers.lance_base import LanceConsumer

    place = IndexPlace(job.key, reader.standing.generation, reader.dataset.uri)
    consumer = get_consumer_class(job.spec.type)(place)
    if not isinstance(consumer, LanceConsumer):
        raise TypeError(f"{job.key} has no Lance index")
    layout = consumer.layout(clone)
    if isinstance(layout, VectorLayout):
        return replace(layout, known=Vectors(clone.uri, clone.version, clone_options(reader)))
    return layout


def _index_texts(clone: LanceDataset, build: Mapping[str, Any]) -> None:
    """Give the tail a segment of its own: phrases and fuzzy words are found in segments only."""
    recipes = [one for one in read_recipes(build["recipes"]) if isinstance(one, TextRecipe)]
    known = {one.name for one in clone.describe_indices()}
    if all(one.name in known for one in recipes):
        names = [one.name for one in recipes]
        # Nothing is merged: that is upkeep of the index, and no business of a reader's.
        clone.optimize.optimize_indices(num_indices_to_merge=0, index_names=names)
    else:
        keep_indexed(clone, recipes)


def _stayed(tail: Tail, build: Mapping[str, Any]) -> pa.Array:
    """Whether the content of each row is what it was: such a text needs no embedder."""
    import pyarrow as pa

    if build["embedder"] is None:
        return pa.array([False] * tail.rows.num_rows, pa.bool_())
    return pa.array(same_rows(tail.rows, tail.before, build["content"]), pa.bool_())


def _with_content(rows: pa.Table, build: Mapping[str, Any]) -> pa.Table:
    """Return the rows that have anything to be found by."""
    import pyarrow as pa

    columns = [_values(rows, name, build) for name in build["content"]]
    if build["type"] == "vector" and build["embedder"] is None:
        there = [any(value is not None for value in row) for row in zip(*columns, strict=True)]
    else:
        there = [any(row) for row in zip(*columns, strict=True)]
    return rows.filter(pa.array(there, pa.bool_()))


def _laid_out(rows: pa.Table, build: Mapping[str, Any]) -> pa.Table:
    """Return the rows under the names that a layout reads."""
    import pyarrow as pa

    keys = build["key"]
    others = [name for name in build["stored"] if name not in keys]
    columns: dict[str, Any] = {f"k{i}": rows[name] for i, name in enumerate(keys)}
    columns |= {f"c{i}": _column(rows, name, build) for i, name in enumerate(others)}
    if build["type"] == "vector":
        columns[CONTENT] = rows[build["content"][0]]
    never = pa.array([False] * rows.num_rows, pa.bool_())
    columns |= {GONE: never, WAS: never, KEPT: never}
    if _STAYED in rows.column_names:
        columns[KEPT] = rows[_STAYED]
    # One batch: a layout embeds and converts a batch at a time.
    return pa.table(columns).combine_chunks()


def _column(rows: pa.Table, name: str, build: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    if name in build["source"]:
        return rows[name]
    return pa.array(_values(rows, name, build), pa.string())


def _values(rows: pa.Table, name: str, build: Mapping[str, Any]) -> list[Any]:
    """Return a column's values, or what a path finds in one."""
    path = None if name in build["source"] else JsonPath.parse(name)
    if path is None:
        return rows[name].to_pylist()
    return [path.read(document) for document in rows[path.column].to_pylist()]


def _settle_dimension(clone: LanceDataset, rows: pa.Table, build: Mapping[str, Any]) -> None:
    """Give the first vectors of an index a column, of the size that most of them have."""
    import pyarrow as pa

    if VECTOR in clone.schema.names:
        return
    sizes = Counter(len(value) for value in rows[build["content"][0]].to_pylist() if value)
    if sizes:
        dimension = min(sizes, key=lambda size: (-sizes[size], size))
        clone.add_columns(pa.schema([pa.field(VECTOR, pa.list_(pa.float32(), dimension))]))

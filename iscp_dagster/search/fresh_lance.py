"""A Lance index with its tail, as a sync would leave it: on a clone that nobody else sees.

A *clone* is a dataset in a folder of its own that names the index's files and copies none. The tail
is applied to it as an iteration applies a window, and the clone is asked in place of the index.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from iscp_dagster.consumers.base import IndexPlace
from iscp_dagster.consumers.json_text import JsonPath
from iscp_dagster.consumers.lance_rows import CONTENT, GONE, KEPT, VECTOR, WAS, Tally
from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.errors import IndexMissing, TailUnavailable
from iscp_dagster.rules.model import Job, Window
from iscp_dagster.search.tail import Tail, belonging
from iscp_dagster.sources.storage import provider_of
from iscp_dagster.stores.lance_index import LanceIndex, Staged, open_dataset
from iscp_dagster.stores.lance_search import LanceReader
from iscp_dagster.stores.lance_segments import TextRecipe, keep_indexed, read_recipes

if TYPE_CHECKING:
    import pyarrow as pa


def check_clonable(job: Job, uri: str) -> None:
    """Refuse an index in an object store: Lance would write its clone into that store."""
    if provider_of(uri) != "local":
        raise TailUnavailable(f"{job.key}: only an index on local disk can be searched fresh")


@contextmanager
def with_tail(job: Job, reader: LanceReader, tail: Tail) -> Iterator[LanceReader]:
    """Open a clone of an index that holds the tail too; it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="iscp-search-") as folder:
        uri = f"{folder}/clone"
        reader.dataset.shallow_clone(uri, reader.version)
        index = LanceIndex(uri, reader.standing.generation)
        _apply(job, index, reader, tail)
        yield LanceReader.open(uri)


def _apply(job: Job, index: LanceIndex, reader: LanceReader, tail: Tail) -> None:
    """Commit the tail to a clone, as one window."""
    import pyarrow as pa

    from iscp_dagster.consumers.lance_base import LanceConsumer

    build = reader.build
    rows = _with_content(belonging(tail.rows, build["where"]), build)
    consumer = get_consumer_class(job.spec.type)(IndexPlace(job.key, index.job_id, index.uri))
    if not isinstance(consumer, LanceConsumer):
        raise TypeError(f"{job.key} has no Lance index")
    if build["type"] == "vector":
        _settle_dimension(index, rows, build)
    dataset = open_dataset(index.uri)
    if dataset is None:
        raise IndexMissing(f"there is no index at {index.uri}")
    layout, tally = consumer.layout(dataset), Tally()
    batches = [tally.count(layout.convert(one)) for one in _laid_out(rows, build).to_batches()]
    staged = index.stage(pa.Table.from_batches(batches, dataset.schema))
    window = Window(reader.watermark, tail.end)
    since = index.standing_of(dataset)
    index.commit(since, window, Staged(staged, tuple(tail.touched)))
    if build["type"] == "fulltext":
        _index_texts(index, build)


def _index_texts(index: LanceIndex, build: Mapping[str, Any]) -> None:
    """Give the tail a segment of its own: phrases and fuzzy words are found in segments only."""
    dataset = open_dataset(index.uri)
    if dataset is None:
        raise IndexMissing(f"there is no index at {index.uri}")
    recipes = [one for one in read_recipes(build["recipes"]) if isinstance(one, TextRecipe)]
    known = {one.name for one in dataset.describe_indices()}
    if all(one.name in known for one in recipes):
        names = [one.name for one in recipes]
        # Nothing is merged: that is upkeep of the index, and no business of a reader's.
        dataset.optimize.optimize_indices(num_indices_to_merge=0, index_names=names)
    else:
        keep_indexed(dataset, recipes)


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


def _settle_dimension(index: LanceIndex, rows: pa.Table, build: Mapping[str, Any]) -> None:
    """Give the first vectors of an index a column, of the size that most of them have."""
    import pyarrow as pa

    dataset = open_dataset(index.uri)
    if dataset is None or VECTOR in dataset.schema.names:
        return
    sizes = Counter(len(value) for value in rows[build["content"][0]].to_pylist() if value)
    if sizes:
        dimension = min(sizes, key=lambda size: (-sizes[size], size))
        index.add_column(pa.field(VECTOR, pa.list_(pa.float32(), dimension)))

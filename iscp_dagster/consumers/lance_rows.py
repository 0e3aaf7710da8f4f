"""From batches of changed rows to the rows of a Lance index; runs on the driver and in Spark tasks.

A *batch* has the columns `k0…` (the key), `c0…` (what the index stores), for a vector index
`content` (its vector or text), and `gone`, `was` and `kept`: whether the row is out of the index at
the window's end, was in it at the start, and has the content it had then. A *layout* turns a batch
into rows as they are stored. A row that can't be is *refused*: its key is reported, and what the
index had under it goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iscp_dagster.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

VECTOR = "vector"
"""The column that a vector index keeps its vectors in."""
CONTENT = "content"
GONE = "gone"
WAS = "was"
KEPT = "kept"
REPORT = "kind string, text string"
"""The schema of what a Spark task reports: see `write_in_task`."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A batch, converted."""

    rows: pa.RecordBatch
    gone: tuple[str, ...]
    refused: tuple[str, ...]
    deleted: int
    """How many of those gone or refused were in the index before."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a row of the index is laid out: `_pk`, `_ctl`, key, stored columns."""

    schema: pa.Schema
    """The dataset's schema."""
    keys: int
    """How many columns the key has; the other stored columns follow in the schema's order."""
    stored: int

    def convert(self, batch: pa.RecordBatch) -> Converted:
        """Turn a batch into rows, keys that are gone and keys that are refused."""
        import numpy as np

        names = [f"k{i}" for i in range(self.keys)] + [f"c{i}" for i in range(self.stored)]
        pks = _canonical([batch.column(name) for name in names[: self.keys]])
        gone = _bools(batch, GONE)
        refused = np.zeros(batch.num_rows, dtype=bool)
        more, bad = self.content(batch, pks, ~gone)
        refused |= bad & ~gone
        kept = ~gone & ~refused
        rows = self._rows(batch, names, pks, more, kept)
        texts = np.array(pks.to_pylist(), dtype=object)
        return Converted(
            rows,
            tuple(texts[gone]),
            tuple(texts[refused]),
            int((_bools(batch, WAS) & ~kept).sum()),
        )

    def content(
        self, batch: pa.RecordBatch, pks: pa.Array, wanted: np.ndarray
    ) -> tuple[Mapping[str, pa.Array], np.ndarray]:
        """Return further columns, and which rows are to be refused."""
        import numpy as np

        return {}, np.zeros(batch.num_rows, dtype=bool)

    def _rows(
        self,
        batch: pa.RecordBatch,
        names: list[str],
        pks: pa.Array,
        more: Mapping[str, pa.Array],
        kept: np.ndarray,
    ) -> pa.RecordBatch:
        import pyarrow as pa

        stored = [batch.column(name) for name in names]
        given = dict(zip(self.schema.names[2 : 2 + len(names)], stored, strict=True)) | dict(more)
        arrays = [pks, pa.nulls(batch.num_rows, pa.string())]
        arrays += [
            given[one.name].cast(one.type)
            if one.name in given
            else pa.nulls(batch.num_rows, one.type)
            for one in self.schema
            if one.name not in self.schema.names[:2]
        ]
        return pa.record_batch(arrays, schema=self.schema).filter(pa.array(kept))


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors that an index has already, at one version: a text that stayed needs no embedder."""

    uri: str
    version: int
    options: Mapping[str, str] | None

    def of(self, pks: list[str], dimension: int) -> dict[str, np.ndarray]:
        """Return the vectors of these keys, as far as there are any."""
        import numpy as np

        from iscp_dagster.stores.lance_index import KEY, open_dataset

        dataset = open_dataset(self.uri, self.version, self.options)
        if dataset is None or not pks:
            return {}
        from pyarrow.compute import field as column

        found = dataset.to_table(columns=[KEY, VECTOR], filter=column(KEY).isin(pks))
        flat = found[VECTOR].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        matrix = flat.astype(np.float32).reshape(-1, dimension)
        return dict(zip(found[KEY].to_pylist(), matrix, strict=True))


@dataclass(frozen=True, slots=True)
class VectorLayout(Layout):
    """A layout with a vector, given or made from a text."""

    metric: str = "l2"
    embedder: str | None = None
    known: Vectors | None = None

    def content(
        self, batch: pa.RecordBatch, pks: pa.Array, wanted: np.ndarray
    ) -> tuple[Mapping[str, pa.Array], np.ndarray]:
        """Return the vectors; refused are those of another dimension, with NaN or infinity.

        A vector of zeros has no direction, so it is refused where the metric is the cosine.
        """
        import numpy as np
        import pyarrow as pa

        if VECTOR not in self.schema.names:
            return {}, np.zeros(batch.num_rows, dtype=bool)
        dimension = self.schema.field(VECTOR).type.list_size
        if self.embedder is None:
            matrix = _matrix(batch.column(CONTENT), dimension)
        else:
            matrix = self._embedded(batch, pks.to_pylist(), wanted, dimension)
        good = np.isfinite(matrix).all(axis=1)
        if self.metric == "cosine":
            good = np.logical_and(good, matrix.any(axis=1))
        flat = pa.array(matrix.reshape(-1), pa.float32())
        return {VECTOR: pa.FixedSizeListArray.from_arrays(flat, dimension)}, np.logical_not(good)

    def _embedded(
        self, batch: pa.RecordBatch, pks: list[str], wanted: np.ndarray, dimension: int
    ) -> np.ndarray:
        """The vectors of the texts that are wanted; only those that changed meet the embedder."""
        import numpy as np

        from iscp_dagster.embedders.registry import get_embedder

        matrix = np.zeros((len(pks), dimension), dtype=np.float32)
        kept = np.logical_and(_bools(batch, KEPT), wanted)
        known: dict[str, np.ndarray] = {}
        if self.known is not None and kept.any():
            known = self.known.of([pks[row] for row in np.flatnonzero(kept)], dimension)
        texts, rows = batch.column(CONTENT).to_pylist(), []
        for row in np.flatnonzero(wanted):
            if kept[row] and pks[row] in known:
                matrix[row] = known[pks[row]]
            else:
                rows.append(row)
        if rows and self.embedder is not None:
            matrix[rows] = get_embedder(self.embedder).embed([texts[row] for row in rows])
        return matrix


@dataclass(slots=True)
class Tally:
    """What came out of some batches, beside the rows."""

    upserted: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    deleted: int = 0

    def count(self, converted: Converted) -> pa.RecordBatch:
        """Take note of a converted batch; return its rows."""
        self.upserted += converted.rows.column(0).to_pylist()
        self.gone += converted.gone
        self.refused += converted.refused
        self.deleted += converted.deleted
        return converted.rows


def write_in_task(
    batches: Iterable[pa.RecordBatch],
    layout: Layout,
    uri: str,
    options: Mapping[str, str] | None,
) -> Iterator[pa.RecordBatch]:
    """Write one Spark task's rows to files; report the fragments and the keys.

    The report has a line for each fragment (`fragment`, its JSON), each key (`upserted`, `gone`,
    `refused`), and one with the number of rows that left the index (`deleted`).
    """
    import pyarrow as pa

    from iscp_dagster.stores.lance_index import stage_batches

    tally = Tally()
    rows = (tally.count(layout.convert(batch)) for batch in batches)
    filled = (batch for batch in rows if batch.num_rows)
    first = next(filled, None)
    fragments: tuple[str, ...] = ()
    if first is not None:
        fragments = stage_batches(uri, layout.schema, _chain(first, filled), options)
    lines = [("fragment", one) for one in fragments]
    lines += [("upserted", one) for one in tally.upserted]
    lines += [("gone", one) for one in tally.gone]
    lines += [("refused", one) for one in tally.refused]
    lines.append(("deleted", str(tally.deleted)))
    kinds, texts = zip(*lines, strict=True)
    yield pa.record_batch({"kind": pa.array(kinds), "text": pa.array(texts)})


def read_reports(reports: pa.Table) -> tuple[tuple[str, ...], Tally]:
    """Put the reports of all tasks together: the fragments, and the tally."""
    texts: dict[str, list[str]] = defaultdict(list)
    for kind, text in zip(reports["kind"].to_pylist(), reports["text"].to_pylist(), strict=True):
        texts[kind].append(text)
    deleted = sum(map(int, texts["deleted"]))
    tally = Tally(texts["upserted"], texts["gone"], texts["refused"], deleted)
    return tuple(texts["fragment"]), tally


def arrow_type(spark_type: str) -> pa.DataType:
    """Return the Arrow type that a Spark type is stored as; only plain values can be stored."""
    import pyarrow as pa

    if spark_type.startswith("decimal("):
        precision, scale = spark_type.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    if spark_type.startswith(("varchar(", "char(")):
        return pa.string()
    return {
        "string": pa.string(),
        "boolean": pa.bool_(),
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }[spark_type]


PLAIN = frozenset(
    "string boolean tinyint smallint int bigint float double binary date timestamp timestamp_ntz".split()  # noqa: SIM905, E501
)


def check_plain(field_name: str, name: str, spark_type: str) -> None:
    """Refuse a column that can't be stored beside the text or the vector."""
    if spark_type not in PLAIN and not spark_type.startswith(("decimal(", "varchar(", "char(")):
        raise UsageError(f"{field_name}: {name!r} is {spark_type}, which an index can't store")


def _canonical(parts: list[pa.Array]) -> pa.Array:
    from iscp_dagster.stores.lance_keys import canonical_keys

    return canonical_keys(parts)


def _bools(batch: pa.RecordBatch, name: str) -> np.ndarray:
    import numpy as np

    return np.asarray(batch.column(name).fill_null(False).to_numpy(zero_copy_only=False), bool)


def _matrix(vectors: pa.Array, dimension: int) -> np.ndarray:
    """The vectors as rows; one that is missing or of another dimension becomes NaN."""
    import numpy as np
    import pyarrow as pa

    sizes = vectors.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
    mask = sizes == dimension
    matrix = np.full((len(vectors), dimension), np.nan, dtype=np.float32)
    # A list with a NULL in it flattens to a NaN, and is refused as such.
    flat = vectors.filter(pa.array(mask)).flatten().cast(pa.float64())
    with np.errstate(over="ignore"):
        values = flat.to_numpy(zero_copy_only=False).astype(np.float32)
    matrix[mask] = values.reshape(-1, dimension)
    return matrix


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest

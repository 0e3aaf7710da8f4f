"""`vector`: rows found by the nearness of vectors, given in a column or made from a text.

The vectors come from a column of numbers, or from an *embedder* that turns a text column into
vectors; only rows whose text changed are embedded again. A row without a vector or a text (NULL or
empty) is not in the index. The *dimension* is the embedder's, the option's, or that of most vectors
in the first window that has any. A vector that does not fit is *refused*: its row is out of the
index and its key is reported; with `on_bad_row=fail` the window is not applied at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from iscp_dagster.consumers.base import (
    ColumnFacts,
    ConsumerResult,
    SourceFacts,
    check_options,
    parse_where,
    resolve_columns,
    split_names,
)
from iscp_dagster.consumers.lance_base import Build, LanceConsumer
from iscp_dagster.consumers.lance_rows import (
    CONTENT,
    GONE,
    VECTOR,
    Layout,
    Tally,
    VectorLayout,
    Vectors,
)
from iscp_dagster.consumers.lance_spec import check_stored, read_choice, stored_names
from iscp_dagster.embedders.registry import get_embedder
from iscp_dagster.errors import BuildMismatch, RowsRefused, UsageError
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.stores.lance_index import LanceStanding, open_dataset, storage_options
from iscp_dagster.stores.lance_segments import KeyRecipe, VectorRecipe, write_recipes

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset
    from pyspark.sql import Column, DataFrame

METRICS = ("l2", "cosine", "dot")
MAX_DIMENSION = 65_536
NAMED = 100
"""How many refused rows are reported by key; all are counted."""
_VECTORS = ("array<float>", "array<double>")
RECALL_FLOOR = 0.95
"""The recall below which the check of an index goes red, unless `recall_floor` says otherwise."""
_OPTIONS = (
    "metric", "embedder", "dimension", "on_bad_row", "include", "where", "recall_floor",
)  # fmt: skip


class Vector(LanceConsumer):
    """The one column of `--columns`: vectors, or a text with `--option embedder=…`."""

    type = "vector"

    @classmethod
    def make_build(cls, spec: JobSpec, pk: Sequence[str], facts: SourceFacts) -> Build:
        """Check the spec and settle what the index is made from."""
        check_options(spec, _OPTIONS)
        read_recall_floor(spec)
        column = _column(spec, facts)
        embedder, dimension = _embedder(spec, column)
        keys = resolve_columns("pk", pk, facts)
        check_stored("pk", keys)
        names = spec.options.get("include")
        more = resolve_columns("include", split_names("include", names) if names else (), facts)
        check_stored("include", more)
        where = parse_where(spec, facts)
        used = resolve_columns("where", where.columns if where else (), facts)
        kept = tuple(dict.fromkeys((*keys, *more)))
        metric = read_choice(spec, "metric", METRICS)
        return {
            "type": cls.type,
            "key": [one.name for one in keys],
            "stored": stored_names([one.name for one in kept]),
            "content": [column.name],
            "embedder": embedder,
            "dimension": dimension,
            "metric": metric,
            "on_bad_row": read_choice(spec, "on_bad_row", ("skip", "fail")),
            "recipes": write_recipes([VectorRecipe(VECTOR, metric), KeyRecipe()]),
            "where": None if where is None else where.text,
            "source": {one.name: one.type for one in (*kept, column, *used)},
        }

    @classmethod
    def example_query(cls, spec: JobSpec, uri: str) -> str:
        """Return an example of how to ask the index, shown with its asset."""
        return f"iscp_dagster.stores.lance_index.LanceIndex.open({uri!r}).vector_search([0.1, …])"

    def lineage(self) -> Mapping[str, tuple[str, ...]]:
        """The vectors come from their column, or from the text that was embedded."""
        return {**super().lineage(), VECTOR: tuple(self.build["content"])}

    def payload(self, build: Build) -> pa.Schema:
        """Return the columns of the dataset; the vectors' comes later if nothing tells its size."""
        stored = super().payload(build)
        dimension = build["dimension"]
        return stored if dimension is None else stored.append(_field(dimension))

    def layout(self, dataset: LanceDataset) -> Layout:
        """Return how rows are laid out in the dataset."""
        keys, embedder = len(self.build["key"]), self.build["embedder"]
        return VectorLayout(
            dataset.schema,
            keys,
            len(self.build["stored"]) - keys,
            metric=self.build["metric"],
            embedder=None if embedder is None else embedder["name"],
            known=Vectors(self.place.uri, dataset.version, storage_options(self.place.uri)),
        )

    def content(self, image: Column) -> list[Column]:
        """Return the vector or the text of a row."""
        return [image.getField(self.build["content"][0])]

    def has_content(self, image: Column) -> Column:
        """Whether a row has a vector, or a text to make one from."""
        if self.build["embedder"] is not None:
            return super().has_content(image)
        return image.getField(self.build["content"][0]).isNotNull()

    def settle(self, rows: DataFrame, standing: LanceStanding) -> None:
        """Check that the embedder is the same; settle the dimension if nothing has yet."""
        recorded = self.build["embedder"]
        if recorded is not None:
            now = get_embedder(recorded["name"])
            if (now.version, now.dimension) != (recorded["version"], recorded["dimension"]):
                raise BuildMismatch(
                    f"{self.place.key} was embedded by {recorded['name']} {recorded['version']}, "
                    f"installed is {now.version}"
                )
        dataset = open_dataset(self.place.uri)
        if dataset is None or VECTOR in dataset.schema.names:
            return
        dimension = _usual_dimension(rows)
        if dimension is not None:
            self.index.add_column(_field(dimension))

    def check_tally(self, tally: Tally) -> None:
        """Raise if a row was refused and the spec says to stop there."""
        if tally.refused and self.build["on_bad_row"] == "fail":
            some = ", ".join(tally.refused[:5])
            raise RowsRefused(
                f"{self.place.key}: {len(tally.refused)} vectors don't fit the index, keys {some}"
            )

    def result(self, result: ConsumerResult, tally: Tally) -> ConsumerResult:
        """Return the result with the refused rows."""
        return replace(
            result, rows_refused=len(tally.refused), refused_keys=tuple(tally.refused[:NAMED])
        )


def read_recall_floor(spec: JobSpec) -> float:
    """Read the recall that the check of an index holds it to."""
    text = spec.options.get("recall_floor")
    try:
        floor = float(text) if text else RECALL_FLOOR
    except ValueError:
        floor = 0.0
    if not 0 < floor <= 1:
        raise UsageError(f"recall_floor: {text!r} is not above 0 and up to 1", cure="write 0.95")
    return floor


def _column(spec: JobSpec, facts: SourceFacts) -> ColumnFacts:
    if len(spec.columns) != 1:
        raise UsageError("columns: vector takes exactly one", cure="write --columns embedding")
    (column,) = resolve_columns("columns", spec.columns, facts)
    if spec.options.get("embedder"):
        if column.type != "string" and not column.type.startswith(("varchar(", "char(")):
            raise UsageError(f"columns: {column.name!r} is {column.type}, not a text")
    elif column.type not in _VECTORS:
        raise UsageError(
            f"columns: {column.name!r} is {column.type}, not {' or '.join(_VECTORS)}",
            cure="a text column needs --option embedder=wordllama",
        )
    return column


def _embedder(spec: JobSpec, column: ColumnFacts) -> tuple[dict[str, str | int] | None, int | None]:
    """The embedder with its version, and the dimension, as far as they are known by now."""
    text = spec.options.get("dimension")
    if text and not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_DIMENSION):
        raise UsageError(f"dimension: {text!r} is not between 1 and {MAX_DIMENSION}")
    name = spec.options.get("embedder")
    if not name:
        return None, int(text) if text else None
    found = get_embedder(name)
    if text and int(text) != found.dimension:
        raise UsageError(f"dimension: {name} makes vectors of {found.dimension} numbers")
    recorded = {"name": name, "version": found.version, "dimension": found.dimension}
    return recorded, found.dimension


def _usual_dimension(rows: DataFrame) -> int | None:
    """The size that most vectors have; the smaller one where two are as frequent."""
    from pyspark.sql import functions as fn

    size = fn.size(CONTENT).alias("size")
    counted = rows.where(~fn.col(GONE)).groupBy(size).count().where("size > 0")
    found = counted.orderBy(fn.desc("count"), "size").limit(1).collect()
    return found[0]["size"] if found else None


def _field(dimension: int) -> pa.Field:
    import pyarrow as pa

    return pa.field(VECTOR, pa.list_(pa.float32(), dimension))

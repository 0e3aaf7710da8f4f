"""Files become one batch of rows that fit a table, or one sentence that tells why not.

A *batch* is what the files of one load hold: every value in the type of the table's column, one row
per key. Rows have an *order*: that of the files as given, then that within the file. A *problem*
is what keeps a row out (a value that does not fit, a key that is NULL, a line that can't be read);
the first one in that order refuses the whole batch, before anything is written.

A CSV file has a header and RFC 4180 quotes; an empty field is NULL, a quoted empty one an empty
text. A JSON file has one object a line. Binary values are base64 in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp_dagster.errors import LoadFailed, UsageError
from iscp_dagster.sources.casts import Cast, NotConvertible, from_json_text, from_text, from_typed
from iscp_dagster.spark.sql import column, columns, one_line, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

_CORRUPT = "_iscp_corrupt"
_ORDER = "_iscp_order"
_PROBLEM = "_iscp_problem"
_RANK = "_iscp_rank"
_SHOWN = 80
"""How many characters of a value a message shows."""
_MICROS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_OPTIONS = {
    "csv": {
        "header": "true",
        "multiLine": "true",
        "escape": '"',
        # Only a field without quotes is NULL: no text has this character.
        "nullValue": "\u0000",
    },
    "json": {"primitivesAsString": "true"},
    "parquet": {},
}


@dataclass(frozen=True, slots=True)
class Target:
    """The table that the rows are for."""

    name: str
    fields: tuple[StructField, ...]
    key: tuple[str, ...]
    """The key's columns, as the table spells them."""
    automatic: frozenset[str] = frozenset()
    """Columns that the table fills by itself: generated ones and those with a default."""

    def needs(self, field: StructField) -> bool:
        """Whether a column can't be NULL."""
        return field.name in self.key or not field.nullable


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a load, one per key."""

    rows: DataFrame
    columns: tuple[str, ...]
    """The table's columns that the files have."""
    rows_read: int


@dataclass(frozen=True, slots=True)
class _File:
    """One file, open."""

    path: str
    format: str
    rows: DataFrame
    names: dict[str, str]
    """What the file calls each of the table's columns that it has."""


@contextmanager
def read_batch(
    session: SparkSession, paths: Sequence[str], file_format: str, target: Target, keep: str
) -> Iterator[Batch]:
    """Read files into one batch, and release it on leaving.

    Args:
        session: A session of the caller's own.
        paths: What to read, in this order.
        file_format: `parquet`, `csv` or `json`.
        target: What the rows have to fit.
        keep: Which row of a key counts: `first`, `last`, or `only` where a second one is an error.

    Raises:
        UsageError: A file can't be read, its columns are not the table's, a row has a problem, or
            a key is there twice.
        LoadFailed: Spark went away.
    """
    from pyspark import StorageLevel

    files = [_open(session, path, file_format, target) for path in paths]
    present = _present(files, target)
    parts = [_fitted(file, number, present, target) for number, file in enumerate(files)]
    ranked = _ranked(_union(parts), target.key, latest=keep == "last")
    ranked.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        rows_read = _check(ranked, files, target, keep)
        rows = ranked.where(column(_RANK) == 1).select(*columns(present))
        yield Batch(rows, present, rows_read)
    finally:
        with suppress(*spark_errors()):  # where Spark itself is gone, so is the batch
            ranked.unpersist()


def shown_key(names: Sequence[str]) -> Column:
    """A row's key for messages: JSON with every digit of a time."""
    from pyspark.sql import functions as fn

    formats = {"timestampFormat": f"{_MICROS}XXX", "timestampNTZFormat": _MICROS}
    return fn.to_json(fn.struct(*columns(names)), formats)


def _open(session: SparkSession, path: str, file_format: str, target: Target) -> _File:
    """Find out which of the table's columns a file has; read text as text."""
    from pyspark.sql.types import StringType, StructType

    reader = session.read.format(file_format).options(
        columnNameOfCorruptRecord=_CORRUPT, **_OPTIONS[file_format]
    )
    try:
        if file_format == "csv" and _ends_lines_with_crlf(session, path):
            # Found out by Spark itself, it would make "\n" of each "\r\n" within quotes.
            reader = reader.option("lineSep", "\r\n")
        found = reader.load(path)
        names = [name for name in found.columns if name != _CORRUPT]
        if not names and file_format == "json" and session.read.text(path).isEmpty():
            names = list(target.key)
        if not names:
            what = "header" if file_format == "csv" else "line that is a JSON object with columns"
            raise UsageError(f"files: {path!r} has no {what}")
        if file_format != "parquet":
            schema = StructType()
            for name in (*names, _CORRUPT):
                schema.add(name, StringType())
            found = reader.schema(schema).load(path)
            _ = found.schema
    except spark_errors() as error:
        raise _unreadable(repr(path), error) from error
    return _File(path, file_format, found, _match(path, names, target))


def _unreadable(what: str, error: Exception) -> UsageError | LoadFailed:
    from py4j.protocol import Py4JNetworkError
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    # Over Connect, what the server says of the files is of a subclass.
    if isinstance(error, Py4JNetworkError) or type(error) is SparkConnectGrpcException:
        return LoadFailed(f"nothing was loaded: Spark does not answer: {one_line(error)}")
    return UsageError(f"files: {what} can't be read: {one_line(error)}")


def _ends_lines_with_crlf(session: SparkSession, path: str) -> bool:
    first = session.read.option("lineSep", "\n").text(path).head()
    return first is not None and first[0].endswith("\r")


def _match(path: str, names: Sequence[str], target: Target) -> dict[str, str]:
    """Find each column of a file in the table, without regard to case as in Spark."""
    known = {field.name.lower(): field.name for field in target.fields}
    matched: dict[str, str] = {}
    for name in names:
        spelled = known.get(name.lower())
        if spelled is None:
            raise UsageError(
                f"files: {path!r} has a column {name!r} that {target.name} has not",
                cure=f"its columns are {', '.join(known.values())}",
            )
        if spelled in matched:
            raise UsageError(f"files: {path!r} has column {spelled!r} twice")
        matched[spelled] = name
    for field in target.fields:
        if field.name in matched or not target.needs(field):
            continue
        if field.name in target.key or field.name not in target.automatic:
            why = "is of the key" if field.name in target.key else "can't be NULL"
            raise UsageError(f"files: {path!r} has no column {field.name!r}, which {why}")
    return matched


def _present(files: Sequence[_File], target: Target) -> tuple[str, ...]:
    """The table's columns that any file has, in the table's order."""
    for file in files:
        for other in files:
            for name in (other.names.keys() - file.names.keys()) & target.automatic:
                raise UsageError(
                    f"files: {other.path!r} has column {name!r}, which {target.name} fills by "
                    f"itself, {file.path!r} has not",
                    cure="load them one by one",
                )
    return tuple(f.name for f in target.fields if any(f.name in file.names for file in files))


def _fitted(file: _File, number: int, present: Sequence[str], target: Target) -> DataFrame:
    """The rows of a file in the table's types, with their order and their first problem."""
    from pyspark.sql import functions as fn

    values: list[Column] = []
    problems: list[Column] = []
    if file.format != "parquet":
        problems.append(_problem(column(_CORRUPT).isNotNull(), "line", "", column(_CORRUPT)))
    for field in target.fields:
        if field.name not in present:
            continue
        if field.name not in file.names:
            values.append(fn.lit(None).cast(field.dataType).alias(field.name))
            continue
        source, cast = _cast(file, field)
        values.append(cast.value.alias(field.name))
        wrong = source.isNotNull() & ~cast.fits
        problems.append(_problem(wrong, "value", field.name, source.cast("string")))
        if target.needs(field):
            problems.append(_problem(source.isNull(), "null", field.name, fn.lit(None)))
    order = fn.struct(
        fn.lit(number).alias("file"),
        # A split is read by one task, in order, so that the last part counts up within it.
        fn.col("_metadata.file_block_start").alias("split"),
        fn.monotonically_increasing_id().alias("row"),
    )
    problem = fn.coalesce(*problems)
    return file.rows.select(*values, order.alias(_ORDER), problem.alias(_PROBLEM))


def _cast(file: _File, field: StructField) -> tuple[Column, Cast]:
    from pyspark.sql import functions as fn
    from pyspark.sql.types import StringType

    source, want = column(file.names[field.name]), field.dataType
    have = file.rows.schema[file.names[field.name]].dataType
    try:
        if file.format == "json":
            return source, from_json_text(source, want)
        if file.format == "parquet":
            return source, from_typed(source, have, want)
        if not isinstance(want, StringType):
            # Writers that quote everything write NULL as "".
            source = fn.nullif(source, fn.lit(""))
        return source, from_text(source, want)
    except NotConvertible as error:
        has = "CSV" if file.format == "csv" else have.simpleString()
        raise UsageError(
            f"files: column {field.name!r} of {file.path!r} is {has}, which can't become "
            f"{want.simpleString()}"
        ) from error


def _problem(when: Column, kind: str, name: str, value: Column) -> Column:
    from pyspark.sql import functions as fn

    shown = fn.substring(value, 1, _SHOWN)
    facts = (fn.lit(kind).alias("kind"), fn.lit(name).alias("column"), shown.alias("value"))
    return fn.when(when, fn.struct(*facts))


def _union(parts: Sequence[DataFrame]) -> DataFrame:
    """All rows; in pairs, because a plan that is as deep as there are files overflows the stack."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [pair[0].unionByName(pair[1]) if len(pair) > 1 else pair[0] for pair in pairs]
    return parts[0]


def _ranked(rows: DataFrame, key: Sequence[str], *, latest: bool) -> DataFrame:
    """Number the rows of each key, the one that counts first."""
    from pyspark.sql import Window
    from pyspark.sql import functions as fn

    order = column(_ORDER).desc() if latest else column(_ORDER).asc()
    same_key = Window.partitionBy(*columns(key)).orderBy(order)
    return rows.withColumn(_RANK, fn.row_number().over(same_key))


def _check(ranked: DataFrame, files: Sequence[_File], target: Target, keep: str) -> int:
    """Count the rows; raise the first problem, or a key that is there twice and must not be."""
    from pyspark.sql import functions as fn

    where = fn.when(column(_PROBLEM).isNotNull(), column(_ORDER))
    try:
        found = ranked.agg(
            fn.count("*").alias("rows"),
            fn.min(where).alias("where"),
            fn.min_by(column(_PROBLEM), where).alias("problem"),
            fn.min(fn.when(column(_RANK) == 2, shown_key(target.key))).alias("twice"),
        ).collect()[0]
    except spark_errors() as error:
        raise _unreadable("they", error) from error
    if found["problem"] is not None:
        file = files[found["where"]["file"]]
        raise UsageError(f"files: {file.path!r}: {_sentence(found['problem'], file, target)}")
    if found["twice"] is not None and keep == "only":
        raise UsageError(
            f"files: key {found['twice']} is there twice",
            cure="--on-duplicate skip keeps the first, replace the last",
        )
    return found["rows"]


def _sentence(problem: tuple[str, str, str | None], file: _File, target: Target) -> str:
    kind, name, value = problem
    if kind == "line":
        what = "does not have the header's fields" if file.format == "csv" else "is no JSON object"
        return f"line {value!r} {what}"
    if kind == "null":
        why = "it is of the key" if name in target.key else "the table allows none"
        return f"column {name!r} is NULL, {why}"
    want = next(field.dataType for field in target.fields if field.name == name)
    return f"{value!r} in column {name!r} does not fit {want.simpleString()}"

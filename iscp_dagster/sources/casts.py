"""A value of a file becomes a value of the table's type, or is found not to fit.

A value *fits* when nothing of it is lost: `1.239` does not fit a `decimal(10,2)`, a moment in the
afternoon no `date`. Floating point is the exception: it is approximate on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_MAX_DIGITS = 38


class NotConvertible(ValueError):
    """No value of the one type makes sense as one of the other."""


@dataclass(frozen=True, slots=True)
class Cast:
    """A converted value, and whether the original fits; a NULL is for the caller to judge."""

    value: Column
    fits: Column


def from_text(source: Column, want: DataType) -> Cast:
    """Read the text of a CSV field, or of a JSON value that is neither object nor array."""
    from pyspark.sql import functions as fn
    from pyspark.sql.types import BinaryType, StringType

    if isinstance(want, StringType):
        return Cast(source, fn.lit(True))
    if isinstance(want, BinaryType):
        value = fn.try_to_binary(source, fn.lit("base64"))
        return Cast(value, value.isNotNull())
    if is_nested(want):
        raise NotConvertible
    value = source.try_cast(want)
    exact = _exact(want)
    if exact is None:
        return Cast(value, value.isNotNull())
    return Cast(value, value.isNotNull() & value.cast(exact).eqNullSafe(source.try_cast(exact)))


def from_json_text(source: Column, want: DataType) -> Cast:
    """Read the text of any JSON value; one of the wrong shape within it fails the reading."""
    from pyspark.sql import functions as fn

    if not is_nested(want):
        return from_text(source, want)
    value = fn.from_json(source, want, {"mode": "FAILFAST"})  # pyright: ignore[reportArgumentType]
    return Cast(value, value.isNotNull())


def from_typed(source: Column, have: DataType, want: DataType) -> Cast:
    """Convert a value that has a type of its own, as in Parquet."""
    from pyspark.sql import functions as fn
    from pyspark.sql.types import DoubleType, FloatType, StringType

    if have.simpleString() == want.simpleString():
        return Cast(source, fn.lit(True))
    if isinstance(have, StringType):
        return from_text(source, want)
    if is_nested(have) or is_nested(want):
        if not _same_shape(have, want):
            raise NotConvertible
        return Cast(source.cast(want), fn.lit(True))
    if _family(have) != _family(want) and not isinstance(want, StringType):
        raise NotConvertible
    value = source.try_cast(want)
    if isinstance(want, FloatType | DoubleType):
        return Cast(value, value.isNotNull())
    return Cast(value, value.isNotNull() & value.try_cast(have).eqNullSafe(source))


def is_nested(data_type: DataType) -> bool:
    """Whether values of a type have parts."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    return isinstance(data_type, ArrayType | MapType | StructType)


def _exact(want: DataType) -> DataType | None:
    """A type that shows what a cast of a text to `want` drops in silence."""
    from pyspark.sql.types import DateType, DecimalType, TimestampNTZType

    if isinstance(want, DateType):
        return TimestampNTZType()
    if isinstance(want, DecimalType):
        return DecimalType(_MAX_DIGITS, _MAX_DIGITS - (want.precision - want.scale))
    return None


def _family(data_type: DataType) -> str:
    from pyspark.sql.types import DateType, NumericType, TimestampNTZType, TimestampType

    if isinstance(data_type, NumericType):
        return "number"
    if isinstance(data_type, DateType | TimestampType | TimestampNTZType):
        return "time"
    return data_type.typeName()


def _same_shape(have: DataType, want: DataType) -> bool:
    """Whether parts have the same names in the same order: Spark casts them by position."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(have, StructType) and isinstance(want, StructType):
        names = [name.lower() for name in have.names]
        return names == [name.lower() for name in want.names] and all(
            _same_shape(a.dataType, b.dataType)
            for a, b in zip(have.fields, want.fields, strict=True)
        )
    if isinstance(have, ArrayType) and isinstance(want, ArrayType):
        return _same_shape(have.elementType, want.elementType)
    if isinstance(have, MapType) and isinstance(want, MapType):
        return _same_shape(have.keyType, want.keyType) and _same_shape(
            have.valueType, want.valueType
        )
    return not is_nested(have) and not is_nested(want) and _family(have) == _family(want)

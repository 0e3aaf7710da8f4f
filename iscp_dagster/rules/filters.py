"""Filter expressions: which rows of a table belong to an index.

A *filter* is one boolean expression over the columns of a table. It is parsed when the job is
registered, without Spark, and only from a short list of harmless pieces: columns, literals,
comparison, boolean and arithmetic operators, `IS NULL`, `IN`, `LIKE`, `BETWEEN` and the functions
in `FUNCTIONS`. What Spark gets is never the user's text but the parsed tree, written anew with
quoted identifiers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from iscp_dagster.errors import UsageError

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect

MAX_LENGTH = 4000
"""Longest filter text; deeper nesting than this allows would overflow the parser's stack."""

FUNCTIONS = (
    "lower", "upper", "length", "trim", "coalesce", "abs", "round", "floor", "ceil", "substring",
    "concat", "year", "month", "day",
)  # fmt: skip

_CURE = (
    "use columns, literals, comparisons, AND/OR/NOT, arithmetic, IS NULL, IN, LIKE, BETWEEN and "
    f"{', '.join(FUNCTIONS)}"
)
_LITERAL_TYPES = ("DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPNTZ", "TIMESTAMPLTZ")


@dataclass(frozen=True, slots=True)
class Filter:
    """A checked filter: its canonical text, and the columns it reads as the table spells them."""

    text: str
    columns: tuple[str, ...]


def parse_filter(text: str, columns: Iterable[str]) -> Filter:
    """Check a filter over `columns`; anything outside the short list is refused by name.

    Example:
        >>> parse_filter("Section = 'net' and size > 10", ["section", "size"]).text
        "`section` = 'net' AND `size` > 10"
    """
    from sqlglot import exp

    tree = _parse(text)
    spelling = {name.lower(): name for name in columns}
    used: dict[str, None] = {}
    for node in tree.walk():
        _check_node(node)
        if isinstance(node, exp.Column):
            used[_resolve(node, spelling)] = None
    _check_boolean(tree)
    return Filter(_render(tree), tuple(used))


def render_spark(filter_: Filter, struct: str | None = None) -> str:
    """Write the filter for Spark; with `struct`, over the fields of that struct column."""
    if struct is None:
        return filter_.text
    from sqlglot import exp

    tree = _parse(filter_.text)
    for column in tree.find_all(exp.Column):
        column.set("table", exp.to_identifier(struct, quoted=True))
    return _render(tree)


@cache
def _dialect() -> Dialect:
    from sqlglot.dialects.spark import Spark

    class FilterSql(Spark):
        """Spark SQL in which `''` is a quote within a string, and `"` opens no string."""

        class Tokenizer(Spark.Tokenizer):
            QUOTES = ["'"]  # noqa: RUF012 - the base class declares it so
            STRING_ESCAPES = ["\\", "'"]  # noqa: RUF012

    return FilterSql()


def _parse(text: str) -> exp.Expr:
    from sqlglot.errors import SqlglotError

    if len(text) > MAX_LENGTH:
        raise UsageError(f"where: longer than {MAX_LENGTH} characters")
    try:
        trees = _dialect().parse(text)
    except (SqlglotError, RecursionError) as error:
        reason = str(error).splitlines()[0] if not isinstance(error, RecursionError) else "too deep"
        raise UsageError(f"where: {_short(text)} can't be read ({reason})", cure=_CURE) from error
    if len(trees) != 1 or trees[0] is None:
        raise UsageError(f"where: {_short(text)} is not one expression", cure=_CURE)
    return trees[0]


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def _render(tree: exp.Expr) -> str:
    return _dialect().generate(tree, identify=True, comments=False)


def _resolve(column: exp.Expr, spelling: Mapping[str, str]) -> str:
    """Give the column the table's own spelling, and return it."""
    name = column.name
    if column.args.get("table") is not None or name.lower() not in spelling:
        raise UsageError(
            f"where: {column.sql(dialect='spark')} is not a column of the table",
            cure="quote names that have dots or spaces: `a.b`",
        )
    from sqlglot import exp

    column.set("this", exp.to_identifier(spelling[name.lower()], quoted=True))
    return spelling[name.lower()]


@cache
def _allowed() -> Mapping[type[exp.Expr], frozenset[str]]:
    """The node types a filter may hold, each with the arguments it may carry."""
    from sqlglot import exp

    binary = {"this", "expression"}
    operators = (
        exp.And, exp.Or, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ,
        exp.Is, exp.Like, exp.ILike, exp.Escape, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod,
    )  # fmt: skip
    unary = (
        exp.Not, exp.Neg, exp.Paren, exp.Lower, exp.Upper, exp.Length, exp.Trim, exp.Abs,
        exp.Floor, exp.Ceil, exp.Year, exp.Month, exp.Day, exp.TsOrDsToDate,
    )  # fmt: skip
    return {
        **{node: frozenset(binary | {"typed", "safe", "negate"}) for node in operators},
        **{node: frozenset({"this"}) for node in unary},
        exp.DPipe: frozenset(binary | {"safe"}),
        exp.Column: frozenset({"this", "table"}),
        exp.Identifier: frozenset({"this", "quoted"}),
        exp.Literal: frozenset({"this", "is_string"}),
        exp.Boolean: frozenset({"this"}),
        exp.Null: frozenset(),
        exp.In: frozenset({"this", "expressions"}),
        exp.Between: frozenset({"this", "low", "high"}),
        exp.Coalesce: frozenset({"this", "expressions", "is_nvl"}),
        exp.Concat: frozenset({"expressions", "safe", "coalesce"}),
        exp.Round: frozenset({"this", "decimals"}),
        exp.Substring: frozenset({"this", "start", "length"}),
        exp.Cast: frozenset({"this", "to"}),
        exp.TryCast: frozenset({"this", "to", "safe"}),
        exp.DataType: frozenset({"this", "nested"}),
    }


def _check_node(node: exp.Expr) -> None:
    from sqlglot import exp

    allowed = _allowed().get(type(node))
    if allowed is None:
        _refuse(node)
    given = {name for name, value in node.args.items() if value not in (None, False, [])}
    if not given <= allowed:
        _refuse(node)
    if isinstance(node, exp.Cast) and not (
        isinstance(node.this, exp.Literal) and node.to.this.name in _LITERAL_TYPES
    ):
        _refuse(node)


def _check_boolean(tree: exp.Expr) -> None:
    from sqlglot import exp

    inner = tree.unnest()
    truths = (exp.Predicate, exp.Connector, exp.Not, exp.Boolean, exp.Column, exp.Escape)
    if not isinstance(inner, truths):
        raise UsageError(f"where: {_render(tree)} is neither true nor false", cure=_CURE)


def _refuse(node: exp.Expr) -> NoReturn:
    from sqlglot import exp

    function = isinstance(node, exp.Func)
    what = f"the function {node.sql_name().lower()}" if function else type(node).__name__.lower()
    if isinstance(node, exp.Anonymous):
        what = f"the function {node.name.lower()}"
    raise UsageError(f"where: {what} is not allowed in a filter", cure=_CURE)

"""What people write into a search box, as a query that Lance runs.

`blue "mountain bike" +helmet -kids colour~1`: words and phrases *should* occur and raise the score,
`+` *must* occur, `-` must *not*; `~1` and `~2` allow as many wrong letters. A *clause* is one of
these. With several columns a clause is looked for in each, and the scores add up by their weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from iscp_dagster.errors import UsageError
from iscp_dagster.rules.filters import parse_filter

if TYPE_CHECKING:
    from lance.query import FullTextQuery

_CLAUSE = re.compile(r'(?P<occur>[+-]?)(?:"(?P<phrase>[^"]*)"|(?P<word>[^\s"]+))')
_FUZZY = re.compile(r"(?P<word>.+)~(?P<letters>[12]?)")

Occurs = Literal["should", "must", "not"]
_OCCURS: dict[str, Occurs] = {"": "should", "+": "must", "-": "not"}


@dataclass(frozen=True, slots=True)
class Clause:
    """One part of a query."""

    text: str
    occurs: Occurs = "should"
    phrase: bool = False
    fuzzy: int = 0
    """How many letters may be wrong."""


def parse_query(text: str, *, all_words: bool = False) -> tuple[Clause, ...]:
    """Read a query; nothing in it is ever a syntax error, but it has to ask for something.

    Args:
        text: What the user wrote.
        all_words: Every word and phrase must occur, as if each had a `+`.

    Example:
        >>> parse_query('bike -kids')
        (Clause(text='bike', ...), Clause(text='kids', occurs='not', ...))
    """
    found: list[Clause] = []
    plain: list[str] = []
    for match in _CLAUSE.finditer(text):
        occurs = _OCCURS[match["occur"]]
        if all_words and occurs == "should":
            occurs = "must"
        if match["phrase"] is not None:
            found.append(Clause(match["phrase"], occurs, phrase=True))
        elif fuzzy := _FUZZY.fullmatch(match["word"]):
            found.append(Clause(fuzzy["word"], occurs, fuzzy=int(fuzzy["letters"] or 1)))
        elif occurs == "should":
            plain.append(match["word"])
        else:
            found.append(Clause(match["word"], occurs))
    if plain:  # one clause for all of them: Lance ranks it in one pass
        found.insert(0, Clause(" ".join(plain)))
    if all(clause.occurs == "not" for clause in found):
        raise UsageError(
            f"query: {text!r} asks for nothing", cure="write at least one word that shall occur"
        )
    return tuple(found)


def to_lance(clauses: tuple[Clause, ...], weights: Mapping[str, float]) -> FullTextQuery:
    """Write clauses as Lance's query over the columns with these weights."""
    from lance.query import BooleanQuery, Occur

    occurs = {"should": Occur.SHOULD, "must": Occur.MUST, "not": Occur.MUST_NOT}
    queries = [(occurs[clause.occurs], _over_columns(clause, weights)) for clause in clauses]
    if len(queries) == 1 and queries[0][0] is not Occur.MUST_NOT:
        return queries[0][1]
    return BooleanQuery(queries)


def _over_columns(clause: Clause, weights: Mapping[str, float]) -> FullTextQuery:
    from lance.query import BooleanQuery, Occur

    queries = [_in_column(clause, column, weight) for column, weight in weights.items()]
    if len(queries) == 1:
        return queries[0]
    return BooleanQuery([(Occur.SHOULD, query) for query in queries])


def _in_column(clause: Clause, column: str, weight: float) -> FullTextQuery:
    from lance.query import FullTextOperator, MatchQuery, PhraseQuery

    if clause.phrase:
        return PhraseQuery(clause.text, column)
    # A word that must or must not occur may still be several to the tokenizer: all of them count.
    together = FullTextOperator.OR if clause.occurs == "should" else FullTextOperator.AND
    return MatchQuery(clause.text, column, boost=weight, fuzziness=clause.fuzzy, operator=together)


def render_where(text: str, stored: Mapping[str, str]) -> str:
    """Check a filter over the stored columns and write it anew the way Lance reads SQL."""
    from sqlglot import exp, parse_one
    from sqlglot.dialects.postgres import Postgres

    class LanceSql(Postgres):
        class Tokenizer(Postgres.Tokenizer):
            IDENTIFIERS = ["`"]  # noqa: RUF012 - the base class declares it so

    tree = parse_one(parse_filter(text, stored).text, dialect="spark")
    for column in tree.find_all(exp.Column):
        column.set("this", exp.to_identifier(stored[column.name], quoted=True))
    return LanceSql().generate(tree, identify=True, comments=False)

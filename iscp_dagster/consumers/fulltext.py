"""`fulltext`: rows found by the words of one or several text columns, ranked by BM25.

A row without any text (NULL or empty in all of its columns) is not in the index. How texts become
words is settled when the index is made: `tokenizer` `icu` finds the words of every script,
`ngram` parts of words, `simple` splits at what is no letter or digit, `jieba` knows Chinese best.
A text may be inside a JSON column: `--columns title,doc:$.author.name`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from iscp_dagster.consumers.base import (
    ColumnFacts,
    SourceFacts,
    check_options,
    find_column,
    parse_where,
    resolve_columns,
    split_list,
    split_names,
    unquote,
)
from iscp_dagster.consumers.json_text import JsonPath
from iscp_dagster.consumers.lance_base import Build, LanceConsumer
from iscp_dagster.consumers.lance_spec import (
    check_stored,
    read_choice,
    read_switch,
    stored_names,
)
from iscp_dagster.errors import UsageError
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster.stores.lance_jieba import TOKENIZER as JIEBA
from iscp_dagster.stores.lance_jieba import check_jieba
from iscp_dagster.stores.lance_segments import KeyRecipe, Recipe, TextRecipe, write_recipes

TOKENIZERS = ("icu", "ngram", "simple", "jieba")
LANGUAGES = (
    "English", "Arabic", "Danish", "Dutch", "Finnish", "French", "German", "Greek", "Hungarian",
    "Italian", "Norwegian", "Portuguese", "Romanian", "Russian", "Spanish", "Swedish", "Tamil",
    "Turkish",
)  # fmt: skip
_OPTIONS = (
    "tokenizer", "weights", "language", "stem", "stop_words", "fold", "positions", "ngram",
    "include", "where",
)  # fmt: skip


class Fulltext(LanceConsumer):
    """Texts of `--columns`; `--option weights=title:3,body:1` makes some count for more."""

    type = "fulltext"

    @classmethod
    def make_build(cls, spec: JobSpec, pk: Sequence[str], facts: SourceFacts) -> Build:
        """Check the spec and settle what the index is made from."""
        check_options(spec, _OPTIONS)
        texts, read = _texts(spec, facts)
        keys = resolve_columns("pk", pk, facts)
        check_stored("pk", keys)
        included = split_names("include", spec.options["include"]) if _has(spec, "include") else ()
        more = resolve_columns("include", included, facts)
        check_stored("include", more)
        where = parse_where(spec, facts)
        used = resolve_columns("where", where.columns if where else (), facts)
        names = [column.name for column in keys]
        stored = stored_names(
            tuple(dict.fromkeys((*names, *texts, *(column.name for column in more))))
        )
        weights = _weights(spec, texts)
        recipes: list[Recipe] = [_recipe(spec, stored[text]) for text in texts]
        return {
            "type": cls.type,
            "key": names,
            "stored": stored,
            "content": list(texts),
            "weights": {stored[name]: weight for name, weight in weights.items()},
            "recipes": write_recipes([*recipes, KeyRecipe()]),
            "where": None if where is None else where.text,
            "source": {column.name: column.type for column in (*keys, *read, *more, *used)},
        }

    @classmethod
    def example_query(cls, spec: JobSpec, uri: str) -> str:
        """Return an example of how to ask the index, shown with its asset."""
        return f"iscp_dagster.stores.lance_index.LanceIndex.open({uri!r}).text_search('words')"


def _texts(spec: JobSpec, facts: SourceFacts) -> tuple[tuple[str, ...], tuple[ColumnFacts, ...]]:
    """The texts to index, columns or paths into JSON columns, and the columns they are read from.

    A column that is called like a path is a column.
    """
    if not spec.columns:
        raise UsageError("columns: fulltext needs one at least", cure="write --columns title,body")
    texts: list[str] = []
    read: list[ColumnFacts] = []
    for name in spec.columns:
        path = None if find_column(facts, name) else JsonPath.parse(name)
        (column,) = resolve_columns("columns", [path.column if path else name], facts)
        if column.type != "string" and not column.type.startswith(("varchar(", "char(")):
            raise UsageError(f"columns: {column.name!r} is {column.type}, not a text")
        text = JsonPath(column.name, path.path).label if path else column.name
        if text in texts:
            raise UsageError(f"columns: {text!r} is named twice")
        texts.append(text)
        read.append(column)
    return tuple(texts), tuple(dict.fromkeys(read))


def _weights(spec: JobSpec, texts: Sequence[str]) -> Mapping[str, float]:
    weights = dict.fromkeys(texts, 1.0)
    spelling = {name.lower(): name for name in weights}
    for part in split_list("weights", spec.options["weights"]) if _has(spec, "weights") else ():
        name, _, text = part.rpartition(":")
        known = spelling.get(unquote(name).lower())
        if known is None:
            raise UsageError(f"weights: {part!r} names no column of the index", cure="write a:3")
        weights[known] = _number(part, text)
    return weights


def _number(part: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1000:
        raise UsageError(f"weights: {part!r} has no weight between 0 and 1000")
    return value


def _recipe(spec: JobSpec, column: str) -> TextRecipe:
    tokenizer = read_choice(spec, "tokenizer", TOKENIZERS)
    language = read_choice(spec, "language", LANGUAGES)
    stem = read_switch(spec, "stem", default=False)
    stop_words = read_switch(spec, "stop_words", default=False)
    if tokenizer == "ngram" and (stem or stop_words):
        raise UsageError("tokenizer: ngram knows no words, so it takes neither stem nor stop_words")
    if tokenizer != "ngram" and _has(spec, "ngram"):
        raise UsageError("ngram: only the tokenizer ngram takes it")
    if _has(spec, "language") and not (stem or stop_words):
        raise UsageError("language: only stem=true and stop_words=true depend on it")
    if tokenizer == "jieba":
        check_jieba()
    shortest, longest = _ngram(spec)
    return TextRecipe(
        column,
        tokenizer=JIEBA if tokenizer == "jieba" else tokenizer,
        language=language,
        stem=stem,
        stop_words=stop_words,
        fold=read_switch(spec, "fold", default=True),
        positions=read_switch(spec, "positions", default=True),
        ngram_min=shortest,
        ngram_max=longest,
    )


def _ngram(spec: JobSpec) -> tuple[int, int]:
    shortest, separator, longest = spec.options.get("ngram", "3").partition("-")
    sizes = (shortest, longest if separator else shortest)
    if not all(size.isascii() and size.isdigit() and 1 <= int(size) <= 10 for size in sizes):
        raise UsageError("ngram: lengths are 1 to 10", cure="write ngram=3 or ngram=2-4")
    if int(sizes[0]) > int(sizes[1]):
        raise UsageError("ngram: the shortest is longer than the longest", cure="write ngram=2-4")
    return int(sizes[0]), int(sizes[1])


def _has(spec: JobSpec, name: str) -> bool:
    return bool(spec.options.get(name))

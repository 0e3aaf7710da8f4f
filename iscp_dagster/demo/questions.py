"""What the demo asks its indexes, and what each answer has to be.

Every question is asked three times: after the first sync, *fresh* after the table has changed and
before the indexes have, and after the second sync. A *claim* is what must be true of an answer,
worked out from the rows of the table alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from iscp_dagster.demo.corpus import Doc
from iscp_dagster.demo.library import DELETED, EMBEDDER, NEW_MODULE, TABLE

Hits = list[dict[str, Any]]
Claim = Callable[[Hits, Sequence[Doc]], bool]
_MOST = 100
_CLOSE = 1e-3
"""How far scores of the same vectors may be apart."""


@dataclass(frozen=True, slots=True)
class Question:
    """A search and what it must find."""

    job: str
    query: str
    claim: Claim
    show: Callable[[Hits], str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What an index said, and whether that is right."""

    job: str
    query: str
    version: int
    """The table's version at which it is true."""
    fresh: bool
    found: str
    """The hits in a few words."""
    hits: int
    seconds: float
    right: bool


def ask(
    question: Question,
    versions: Sequence[Sequence[Doc]],
    *,
    fresh: bool = False,
    at_least: int = 0,
) -> Answer:
    """Ask one question; the answer must be true at the version it names.

    Args:
        question: What to ask.
        versions: The table's rows at each of its versions.
        fresh: Whether to add what the index does not hold yet.
        at_least: The oldest version that the answer may be true at.
    """
    from iscp_dagster.search import search

    started = perf_counter()
    result = search(TABLE, question.job, question.query, k=_MOST, fresh=fresh)
    seconds = perf_counter() - started
    hits = result.hits()
    return Answer(
        job=question.job,
        query=question.query,
        version=result.version,
        fresh=fresh,
        found=question.show(hits),
        hits=len(hits),
        seconds=round(seconds, 3),
        right=at_least <= result.version < len(versions)
        and question.claim(hits, versions[result.version]),
    )


def _has_those_with(word: str) -> Claim:
    """Claim that a full-text search finds the rows with a word that stands alone in them."""

    def claim(hits: Hits, docs: Sequence[Doc]) -> bool:
        found = set(_names(hits))
        wanted = {doc.name for doc in docs if word in doc.doc.lower().split()}
        possible = {doc.name for doc in docs if word in doc.doc.lower()}
        return wanted <= found <= possible

    return claim


def _is_nearest(text: str) -> Claim:
    """Claim that the first hit is as near as any row, by comparing with all of them."""

    def claim(hits: Hits, docs: Sequence[Doc]) -> bool:
        import numpy as np

        from iscp_dagster.embedders.registry import get_embedder

        vectors = get_embedder(EMBEDDER).embed([text, *(doc.doc for doc in docs)])
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        near = vectors[1:] @ vectors[0]
        of = dict(zip((doc.name for doc in docs), near, strict=True))
        return bool(hits and of.get(_names(hits)[0], -1.0) >= near.max() - _CLOSE)

    return claim


def _holds(module: str) -> Claim:
    def claim(hits: Hits, docs: Sequence[Doc]) -> bool:
        return sorted(_names(hits)) == sorted(doc.name for doc in docs if doc.module == module)

    return claim


def _counts(module: str) -> Claim:
    def claim(hits: Hits, docs: Sequence[Doc]) -> bool:
        counted = [(hit["count"], hit["sum_doc_chars"]) for hit in hits]
        chars = [len(doc.doc) for doc in docs if doc.module == module]
        return counted == [(len(chars), sum(chars))]

    return claim


def _names(hits: Hits) -> list[str]:
    return [hit["key"]["name"] for hit in hits]


def _first(hits: Hits) -> str:
    """Name the best hit, and how many more there are."""
    if not hits:
        return "nothing"
    more = f" (+{len(hits) - 1})" if len(hits) > 1 else ""
    return f"{_names(hits)[0]}{more}"


def _nearest(hits: Hits) -> str:
    return f"{_names(hits)[0]} ({hits[0]['score']:.2f})" if hits else "nothing"


def _count(hits: Hits) -> str:
    return f"{hits[0]['count']} entries" if hits else "nothing"


_DELETED_MODULE, _, _DELETED_WORD = DELETED.partition(".")
QUESTIONS = (
    Question("words", "samovar", _has_those_with("samovar"), _first),
    Question("words", _DELETED_WORD, _has_those_with(_DELETED_WORD), _first),
    Question("meaning", "a hot drink", _is_nearest("a hot drink"), _nearest),
    Question("by_module", f"module={NEW_MODULE}", _holds(NEW_MODULE), _first),
    Question("per_module", f"module={_DELETED_MODULE}", _counts(_DELETED_MODULE), _count),
)

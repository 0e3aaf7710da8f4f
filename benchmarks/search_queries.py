"""Questions to the indexes, against the same questions put to Lance by hand.

By hand, a dataset that is open already is asked for the same columns. The *reader* is an index that
is open, too; a *search* is everything from the job's name to the hits, at the version that is the
newest by then. A *fresh* search is *warm* while the table has had no commit since the last one;
after a commit it is *grown*, and *cold* if there was none before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.search_packages import NAME, SPECS, TEXT, Home, Releases
from iscp_dagster.embedders.registry import get_embedder
from iscp_dagster.joblog import JobLog
from iscp_dagster.search import search
from iscp_dagster.search.tail import forget_tails
from iscp_dagster.stores.lance_search import LanceReader

if TYPE_CHECKING:
    from lance import LanceDataset

K = 10
_ALL = 1_000_000
_SCORE, _DISTANCE = "_score", "_distance"
Ask = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class QueryFigures:
    """Medians of one index, in seconds."""

    name: str
    rows: int
    tail: int
    """How many rows the tail has."""
    search: float
    warm: float
    grown: float
    cold: float
    by_hand: float | None = None
    """None for indexes that are no Lance datasets."""
    reader: float | None = None

    @property
    def reader_ratio(self) -> float | None:
        """A query of an open index, to one by hand."""
        return self.reader / self.by_hand if self.reader and self.by_hand else None

    @property
    def warm_ratio(self) -> float:
        """A fresh search to a plain one."""
        return self.warm / self.search


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far fresh answers are those of an index that was synced."""

    queries: int
    same: int
    """How many queries match the same packages."""
    top: float
    """The share of the first hits that are among the true first hits."""


def measure_queries(
    home: Home, releases: Releases, tail: int, queries: int, rounds: int
) -> list[QueryFigures]:
    """Ask everything in turns, each index after a commit of its own."""
    words = releases.words(queries, each=2)
    rewritten = releases.rewritten[:tail]
    home.merge(releases.table(rewritten))
    nudge = rewritten[0]
    with home.open_log() as log:
        asks = {name: _asks(home, log, name, words) for name in SPECS if name != "rows"}
        kinds = ("grown", "cold")
        taken = {name: {kind: [] for kind in (*ways, *kinds)} for name, ways in asks.items()}
        for number in range(rounds + 1):
            for name, ways in asks.items():
                ways["warm"](words[number])
                home.merge(releases.table([{**nudge, TEXT: f"{nudge[TEXT]} {name} {number}"}]))
                grown = _seconds(ways["warm"], words[number])
                forget_tails()
                cold = _seconds(ways["warm"], words[number])
                times = {**_in_turns(ways, words), "grown": [grown], "cold": [cold]}
                if number:  # the first round only warms up
                    for kind, seconds in times.items():
                        taken[name][kind] += seconds
        home.merge(releases.table([nudge]))
    return [
        QueryFigures(
            name=name,
            rows=releases.old.num_rows,
            **{kind: median(seconds) for kind, seconds in kinds.items()},
            tail=len(rewritten),
        )
        for name, kinds in taken.items()
    ]


def measure_agreement(home: Home, releases: Releases, synced: str, queries: int) -> Agreement:
    """Ask the index fresh, and a copy of it that was synced.

    Hits with the score of the last of the true ones are as good as it.
    """
    reader = LanceReader.open(synced)
    same, best = 0, []
    words = releases.words(queries, each=2)
    with home.open_log() as log:
        for query in words:
            fresh = search(NAME, "texts", query, k=_ALL, columns=[], fresh=True, log=log).table
            true = reader.text_search(query, _ALL, columns=[])
            scores = dict(zip(true["package"].to_pylist(), true[_SCORE].to_pylist(), strict=True))
            found = fresh["package"].to_pylist()
            same += set(found) == scores.keys()
            last = min(sorted(scores.values(), reverse=True)[:K], default=0.0) - 1e-5
            best += [scores.get(name, 0.0) >= last for name in found[:K]]
    return Agreement(len(words), same, sum(best) / len(best))


def _asks(home: Home, log: JobLog, name: str, words: Sequence[str]) -> Mapping[str, Ask]:
    """The ways to ask one index."""

    def searched(*, fresh: bool) -> Ask:
        if name in ("lookup", "groups"):
            return lambda _: search(NAME, name, "section=editors", k=K, fresh=fresh, log=log)
        return lambda query: search(NAME, name, query, k=K, fresh=fresh, log=log)

    ways = {"search": searched(fresh=False), "warm": searched(fresh=True)}
    uri = home.index(home.jobs(log)[name])
    if name == "texts":
        return {**_text_asks(uri), **ways}
    if name == "vectors":
        return {**_vector_asks(uri, words), **ways}
    return ways


def _text_asks(uri: str) -> Mapping[str, Ask]:
    import lance
    from lance.query import MatchQuery

    dataset, reader = lance.dataset(uri), LanceReader.open(uri)
    columns = ["package", TEXT, _SCORE]

    def by_hand(query: str) -> pa.Table:
        return _read(dataset, columns, full_text_query=MatchQuery(query, TEXT), limit=K)

    return {"by_hand": by_hand, "reader": lambda query: reader.text_search(query, K)}


def _vector_asks(uri: str, words: Sequence[str]) -> Mapping[str, Ask]:
    import lance

    dataset, reader = lance.dataset(uri), LanceReader.open(uri)
    embedder = get_embedder("wordllama")
    vectors = {query: embedder.embed([query])[0].tolist() for query in words}
    # As many candidates as a reader compares exactly.
    nearest = {"column": "vector", "k": K, "metric": "cosine", "refine_factor": 10}

    def by_hand(query: str) -> pa.Table:
        return _read(dataset, ["package", _DISTANCE], nearest={**nearest, "q": vectors[query]})

    return {"by_hand": by_hand, "reader": lambda query: reader.vector_search(vectors[query], K)}


def _read(dataset: LanceDataset, columns: list[str], **what: Any) -> pa.Table:
    scanner = dataset.scanner(columns=columns, disable_scoring_autoprojection=True, **what)
    return scanner.to_table()


def _in_turns(ways: Mapping[str, Ask], words: Sequence[str]) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {kind: [] for kind in ways}
    for query in words:
        for kind, ask in ways.items():
            taken[kind].append(_seconds(ask, query))
    return taken


def _seconds(ask: Ask, query: str) -> float:
    begin = time.perf_counter()
    ask(query)
    return time.perf_counter() - begin

"""Several ranked indexes of one table, asked together: words and meaning in one list.

Scores of different indexes can't be compared, ranks can. *Reciprocal rank fusion* gives a row
1 / (60 + rank) for each list that names it and adds up. All indexes are asked at one *common*
point of the table's history: the newest at which each of them stands or has stood, or with `fresh`
the table's newest version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iscp_dagster.errors import NoCommonVersion, TailUnavailable, UsageError
from iscp_dagster.rules.model import TS, Table
from iscp_dagster.search.ask import (
    LANCE_TYPES,
    Index,
    Question,
    find,
    open_reader,
    readable,
    tail_of,
    with_tail_of,
)
from iscp_dagster.search.result import Answer
from iscp_dagster.sources.delta_log import open_log
from iscp_dagster.stores.lance_index import KEY
from iscp_dagster.stores.lance_keys import canonical_keys

if TYPE_CHECKING:
    import pyarrow as pa

    from iscp_dagster.search.tail import Tail
    from iscp_dagster.stores.lance_search import LanceReader

RANK_CONSTANT = 60
"""How little the first ranks stand out; 60 is what the method was published with."""
DEPTH = 100
"""How many hits of each index at least are ranked together."""
_TRIES = 5
_COMMITS = 1000


@dataclass(frozen=True, slots=True)
class Member:
    """One of the indexes, open."""

    index: Index
    reader: LanceReader


def ask_together(indexes: Sequence[Index], question: Question) -> tuple[Answer, dict[str, int]]:
    """Ask indexes of one table, and put their ranks together.

    Returns:
        The answer, and by job the version of its store that was asked.

    Raises:
        UsageError: An index has no ranking, or the question does not fit it.
        NoCommonVersion: The indexes stand at different points and none is common to them.
    """
    for index in indexes:
        if index.job.spec.type not in LANCE_TYPES:
            raise UsageError(
                f"search: {index.job.key} is a {index.job.spec.type} index and ranks nothing",
                cure=f"{' and '.join(LANCE_TYPES)} indexes can be asked together",
            )
    if question.vector is not None and all(one.job.spec.type != "vector" for one in indexes):
        raise UsageError("vector: none of the indexes has vectors")
    with readable(indexes):
        members = [Member(index, open_reader(index)) for index in indexes]
        with _common(members, fresh=question.fresh) as (asked, at):
            answer = _fused(asked, question, at)
    # A clone of a fresh search counts versions of its own: what was asked is the index's.
    opened = members if question.fresh else asked
    return answer, {one.index.job.key.name: one.reader.version for one in opened}


def fuse(rankings: Sequence[Sequence[str]]) -> list[tuple[str, float]]:
    """Put rankings together, best first; equal scores order by key.

    Example:
        >>> fuse([["a", "b"], ["b"]])
        [('b', 0.03252247488101534), ('a', 0.01639344262295082)]
    """
    scores: dict[str, float] = defaultdict(float)
    for ranking in rankings:
        for rank, key in enumerate(ranking, start=1):
            scores[key] += 1 / (RANK_CONSTANT + rank)
    return sorted(scores.items(), key=lambda one: (-one[1], one[0]))


def _fused(members: Sequence[Member], question: Question, at: TS) -> Answer:
    import pyarrow as pa

    columns = _columns(members, question.columns)
    wanted = replace(question, k=max(DEPTH, question.k), columns=())
    best = fuse([_ranking(member, wanted) for member in members])[: question.k]
    keys = pa.array([key for key, _ in best], pa.string())
    rows = _rows(members, columns, keys)
    score = pa.chunked_array([pa.array([score for _, score in best], pa.float64())])
    key = tuple(members[0].reader.build["key"])
    return Answer(rows, score, key, at, members[0].reader.version)


def _ranking(member: Member, question: Question) -> list[str]:
    """Return the keys that one index finds, best first."""
    if member.index.job.spec.type != "vector":
        question = replace(question, vector=None)
    elif question.vector is not None:
        question = replace(question, query=None)
    try:
        found = find(member.reader, question)
    except UsageError as error:
        name = member.index.job.key.name
        raise UsageError(f"{error.message} ({name})", cure=error.cure) from error
    return canonical_keys([found.rows[name] for name in found.key]).to_pylist()


def _columns(members: Sequence[Member], wanted: Sequence[str] | None) -> list[str]:
    """Return the columns of the answer, the key first; each is held by one index at least."""
    known = list(dict.fromkeys(name for member in members for name in member.reader.stored))
    if wanted is None:
        return known
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"columns: none of the indexes has {name!r}", cure=f"they have {', '.join(known)}"
            )
    return list(dict.fromkeys((*members[0].reader.build["key"], *wanted)))


def _rows(members: Sequence[Member], columns: Sequence[str], keys: pa.Array) -> pa.Table:
    """Return the rows with these keys, each value from whichever index holds it."""
    import pyarrow as pa
    from pyarrow import compute

    held: dict[str, list[pa.ChunkedArray]] = {name: [] for name in columns}
    for reader in (member.reader for member in members):
        names = {name: reader.stored[name] for name in columns if name in reader.stored}
        found = reader.dataset.to_table(
            columns=[KEY, *names.values()], filter=compute.field(KEY).isin(keys)
        )
        known = compute.SetLookupOptions(value_set=found[KEY].combine_chunks())
        places = compute.call_function("index_in", [keys], known)
        for name, stored in names.items():
            held[name].append(found[stored].take(places))
    return pa.table({n: compute.call_function("coalesce", parts) for n, parts in held.items()})


@contextmanager
def _common(members: Sequence[Member], *, fresh: bool) -> Iterator[tuple[list[Member], TS]]:
    """Open the indexes at one point of their table's history."""
    if not fresh:
        yield _stepped_back(members)
        return
    tails, at = _tails(members)
    with ExitStack() as stack:
        merged = [
            Member(
                member.index,
                stack.enter_context(with_tail_of(member.index, member.reader, tail)),
            )
            for member, tail in zip(members, tails, strict=True)
        ]
        yield merged, at


def _tails(members: Sequence[Member]) -> tuple[list[Tail | None], TS]:
    """Read all tails up to one version, though the table may get commits meanwhile."""
    tails = [tail_of(member.index, member.reader) for member in members]
    for _ in range(_TRIES):
        ends = [
            member.reader.watermark if tail is None else tail.end
            for member, tail in zip(members, tails, strict=True)
        ]
        last = max(ends, key=lambda end: end.version)
        if all(end == last for end in ends):
            return tails, last
        tails = [
            tail if end == last else tail_of(member.index, member.reader)
            for member, tail, end in zip(members, tails, ends, strict=True)
        ]
    raise TailUnavailable(
        f"{members[0].index.table.key}: the table changes faster than its changes can be read"
    )


def _stepped_back(members: Sequence[Member]) -> tuple[list[Member], TS]:
    """Take older versions of those ahead, until all stand at the same data."""
    from iscp_dagster.stores.lance_versions import reader_before

    table = members[0].index.table
    now = list(members)
    while True:
        last = min((member.reader.watermark for member in now), key=lambda at: at.version)
        until = _unchanged_until(table, last)
        if all(member.reader.watermark <= until for member in now):
            return now, max((member.reader.watermark for member in now), key=lambda at: at.version)
        before = []
        for member in now:
            reader = reader_before(member.reader, member.index.uri, until)
            if reader is None:
                raise _apart(members)
            before.append(Member(member.index, reader))
        now = before


def _unchanged_until(table: Table, at: TS) -> TS:
    """Return the last point up to which the table's data is what it was."""
    for read in open_log(table.uri, {}).read(at.version + 1, _COMMITS, None):
        if read.commit.data_change:
            break
        at = read.commit.ts
    return at


def _apart(members: Sequence[Member]) -> NoCommonVersion:
    stand = ", ".join(
        f"{member.index.job.key.name} at v{member.reader.watermark.version}" for member in members
    )
    return NoCommonVersion(
        f"{members[0].index.table.key}: the indexes stand at different versions ({stand}) "
        "and none that they had in common is left"
    )

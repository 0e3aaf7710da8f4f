"""A made-up history for Lance tests: what an index has to hold at each version, known beforehand.

Version v inserts, rewrites and deletes a few documents. `state(v)` is the table at v, so an index
at watermark v is right if, and only if, it holds exactly that.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from iscp_dagster.rules.model import TS, Window
from iscp_dagster.stores.lance_index import KEY, LanceIndex, LanceStanding, Staged, open_dataset
from iscp_dagster.stores.lance_keys import canonical_keys
from iscp_dagster.stores.lance_search import LanceReader
from iscp_dagster.stores.lance_segments import (
    KeyRecipe,
    TextRecipe,
    VectorRecipe,
    keep_indexed,
    read_recipes,
    write_recipes,
)

WORDS = "amber basil cedar dune ember fjord grove heron iris jade karst lotus".split()  # noqa: SIM905
DIMENSION = 4
PAYLOAD = pa.schema(
    [("id", pa.int64()), ("body", pa.string()), ("vector", pa.list_(pa.float32(), DIMENSION))]
)
BUILD: dict[str, Any] = {
    "type": "test",
    "key": ["id"],
    "stored": {"id": "id", "body": "body"},
    "weights": {"body": 1.0},
    "recipes": write_recipes(
        [TextRecipe("body"), VectorRecipe("vector", flat_below=40), KeyRecipe(index_from=60)]
    ),
}

State = Mapping[int, str]


@cache
def state(version: int) -> State:
    """The table at a version: text by id; nothing before the first."""
    if version < 0:
        return {}
    rng = random.Random(version)
    rows = dict(state(version - 1))
    for _ in range(rng.randint(1, 8)):
        rows[rng.randrange(120)] = " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))
    for gone in rng.sample(sorted(rows), k=min(len(rows) - 1, rng.randint(0, 3))):
        del rows[gone]
    return rows


def vector_of(text: str) -> list[float]:
    """A vector that depends on nothing but the text."""
    rng = random.Random(text)
    return [rng.uniform(-1, 1) for _ in range(DIMENSION)]


def ts(version: int) -> TS:
    """The point in history of a version."""
    if version < 0:
        return TS.zero()
    return TS(version, datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=version))


def key_of(number: int) -> str:
    """The canonical key of an id."""
    return canonical_keys([pa.array([number], pa.int64())])[0].as_py()


def rows_of(rows: State) -> pa.Table:
    """Rows as they are stored."""
    return pa.Table.from_pylist(
        [
            {KEY: key_of(number), "id": number, "body": text, "vector": vector_of(text)}
            for number, text in rows.items()
        ],
        schema=pa.schema([(KEY, pa.string()), ("_ctl", pa.string()), *PAYLOAD]),
    )


def create(uri: str | Path, job_id: int = 7) -> LanceIndex:
    """Make an empty index."""
    index = LanceIndex(str(uri), job_id)
    index.create(PAYLOAD, BUILD)
    tidy(index)
    return index


def stage(index: LanceIndex, start: int, end: int) -> Staged:
    """Stage the net effect of the window (start, end]; from the beginning, a snapshot."""
    before, after = state(start), state(end)
    changed = {number: text for number, text in after.items() if before.get(number) != text}
    touched = {*changed, *(before.keys() - after.keys())}
    return Staged(
        index.stage(rows_of(changed)), tuple(map(key_of, sorted(touched))), whole=start < 0
    )


def apply(index: LanceIndex, end: int, *, indexed: bool = True) -> LanceStanding:
    """Bring an index from where it stands to a version."""
    since = index.standing()
    assert since is not None
    window = Window(since.watermark, ts(end))
    after = index.commit(since, window, stage(index, since.watermark.version, end))
    if indexed:
        tidy(index)
    return after


def tidy(index: LanceIndex) -> None:
    """What a consumer does after each window."""
    dataset = open_dataset(index.uri)
    assert dataset is not None
    keep_indexed(dataset, read_recipes(BUILD["recipes"]))


def content(reader: LanceReader) -> dict[int, str]:
    """What an index holds; no key may be there twice."""
    rows = reader.table().to_pylist()
    found = {row["id"]: row["body"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    assert all(row[KEY] == key_of(row["id"]) for row in rows)
    return found


def found_by(reader: LanceReader, query: str) -> set[int]:
    """The ids that a text query finds, however many."""
    return set(reader.text_search(query, k=1000)["id"].to_pylist())


def nearest(reader: LanceReader, text: str, k: int = 5) -> list[float]:
    """How near the nearest are: rows with the same text are as near, so ids may differ."""
    scores = reader.vector_search(vector_of(text), k, exact=True)["_score"].to_pylist()
    return [round(score, 5) for score in scores]

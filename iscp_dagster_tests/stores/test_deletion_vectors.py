"""Deletion vectors: what is written is what is read, by us and as Spark writes them."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from iscp_dagster.stores.deletion_vectors import (
    VectorUnreadable,
    file_name,
    identity,
    read_vector,
    write_vectors,
)

# Rows 3, 5 and 7, as Delta 4.0 on Spark wrote them.
SPARKS_FILE = bytes.fromhex(
    "0100000026d1d339640100000000000000000000003a300000010000000000020010000000030005000700000bc16c"
)
SPARKS_ID = UUID("facaf975-b29a-4102-89c3-91f23f12cbdf")
SPARKS_DESCRIPTOR = {
    "storageType": "u",
    "pathOrInlineDv": "}PwRRVyj5XInLFDkn8e%",
    "offset": 1,
    "sizeInBytes": 38,
    "cardinality": 3,
}

positions = st.sets(st.integers(0, 2**33), max_size=60)


def reader(name: str, content: bytes) -> Callable[[str, int, int], bytes]:
    """One file."""

    def read(path: str, offset: int, length: int) -> bytes:
        assert path == name
        return content[offset : offset + length]

    return read


def test_what_spark_wrote_is_read() -> None:
    found = read_vector(SPARKS_DESCRIPTOR, reader(file_name(SPARKS_ID), SPARKS_FILE))
    assert list(found) == [3, 5, 7]


def test_what_is_written_is_byte_for_byte_what_spark_writes() -> None:
    content, descriptors = write_vectors(SPARKS_ID, [BitMap64([3, 5, 7])])
    assert content == SPARKS_FILE
    assert descriptors == [SPARKS_DESCRIPTOR]


@given(st.lists(positions, min_size=1, max_size=4))
def test_vectors_in_one_file_come_back_each_as_it_was(rows: list[set[int]]) -> None:
    uuid = uuid4()
    content, descriptors = write_vectors(uuid, [BitMap64(one) for one in rows])
    read = reader(file_name(uuid), content)
    assert [set(read_vector(one, read)) for one in descriptors] == rows
    assert [one["cardinality"] for one in descriptors] == [len(one) for one in rows]
    assert len({identity(one) for one in descriptors}) == len(rows)


def test_a_file_in_a_folder_of_its_own_is_found() -> None:
    where = {**SPARKS_DESCRIPTOR, "pathOrInlineDv": "ab" + SPARKS_DESCRIPTOR["pathOrInlineDv"]}
    found = read_vector(where, reader(f"ab/{file_name(SPARKS_ID)}", SPARKS_FILE))
    assert list(found) == [3, 5, 7]


@pytest.mark.parametrize(
    "content",
    [
        SPARKS_FILE[:-1] + b"\x00",
        SPARKS_FILE[:-5],
        SPARKS_FILE[:20] + b"\xff" + SPARKS_FILE[21:],
        SPARKS_FILE[:4] + b"\x25" + SPARKS_FILE[5:],
        b"",
    ],
)
def test_a_damaged_file_is_never_taken_for_a_vector(content: bytes) -> None:
    with pytest.raises(VectorUnreadable):
        read_vector(SPARKS_DESCRIPTOR, reader(file_name(SPARKS_ID), content))


def test_a_vector_that_is_elsewhere_is_left_to_others() -> None:
    with pytest.raises(VectorUnreadable):
        read_vector({**SPARKS_DESCRIPTOR, "storageType": "p"}, reader("", b""))


def test_a_file_without_a_vector_and_one_with_are_two_in_the_log() -> None:
    moved = {**SPARKS_DESCRIPTOR, "offset": 47}
    inline = {"storageType": "i", "pathOrInlineDv": "wi5b=", "sizeInBytes": 4, "cardinality": 1}
    found = [identity(one) for one in (None, SPARKS_DESCRIPTOR, moved, inline)]
    assert found == [None, "u}PwRRVyj5XInLFDkn8e%@1", "u}PwRRVyj5XInLFDkn8e%@47", "iwi5b="]

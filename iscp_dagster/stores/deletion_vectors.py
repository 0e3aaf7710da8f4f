"""Deletion vectors as the Delta protocol stores them: which rows of a data file are gone.

A *vector* is a 64-bit roaring bitmap of row positions. A *block* is a vector in its portable form
behind a magic number; blocks lie in files beside the data, each between its length and a checksum,
or within the log itself. A *descriptor* is what the log says about one: where it is, how long, and
how many rows it takes away.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from pyroaring import BitMap64

Descriptor = Mapping[str, Any]

_MAGIC = struct.pack("<i", 1681511377)
_FILE_VERSION = b"\x01"
_LENGTH = struct.Struct(">i")
_CHECKSUM = struct.Struct(">I")
_UUID_CHARS = 20
# Delta writes base 85 with the alphabet of Z85, Python with that of RFC 1924.
_PYTHON_85 = (
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
)
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


class VectorUnreadable(Exception):
    """A deletion vector is damaged, or stored in a way that is not known here."""


def identity(descriptor: Descriptor | None) -> str | None:
    """Return what tells two vectors of one data file apart, as the log's replay needs it."""
    if descriptor is None:
        return None
    offset = descriptor.get("offset")
    suffix = "" if offset is None else f"@{offset}"
    return f"{descriptor['storageType']}{descriptor['pathOrInlineDv']}{suffix}"


def read_vector(descriptor: Descriptor, read: Callable[[str, int, int], bytes]) -> BitMap64:
    """Read a vector.

    Args:
        descriptor: What the log says about it.
        read: Returns so many bytes from an offset of a file beside the data.

    Raises:
        VectorUnreadable: It is damaged, or elsewhere.
    """
    where, size = descriptor["pathOrInlineDv"], int(descriptor["sizeInBytes"])
    if descriptor["storageType"] == "i":
        return _from_block(_decode_85(where)[:size])
    if descriptor["storageType"] != "u":
        raise VectorUnreadable(f"stored as {descriptor['storageType']!r}")
    prefix, encoded = where[:-_UUID_CHARS], where[-_UUID_CHARS:]
    name = file_name(UUID(bytes=_decode_85(encoded)))
    path = f"{prefix}/{name}" if prefix else name
    whole = _LENGTH.size + size + _CHECKSUM.size
    found = read(path, int(descriptor.get("offset") or 0), whole)
    block = found[_LENGTH.size : _LENGTH.size + size]
    if len(found) != whole or _LENGTH.unpack_from(found)[0] != size:
        raise VectorUnreadable(f"{path} is shorter than the log says")
    if _CHECKSUM.unpack(found[-_CHECKSUM.size :])[0] != zlib.crc32(block):
        raise VectorUnreadable(f"{path} has another checksum")
    return _from_block(block)


def write_vectors(uuid: UUID, vectors: Sequence[BitMap64]) -> tuple[bytes, list[dict[str, Any]]]:
    """Return a file with these vectors, to be called `file_name(uuid)`, and their descriptors."""
    content, descriptors = bytearray(_FILE_VERSION), []
    for vector in vectors:
        vector.run_optimize()
        block = _MAGIC + vector.serialize()
        descriptors.append(
            {
                "storageType": "u",
                "pathOrInlineDv": _encode_85(uuid.bytes),
                "offset": len(content),
                "sizeInBytes": len(block),
                "cardinality": len(vector),
            }
        )
        content += _LENGTH.pack(len(block)) + block + _CHECKSUM.pack(zlib.crc32(block))
    return bytes(content), descriptors


def file_name(uuid: UUID) -> str:
    """Return what Delta calls the file of a vector's id."""
    return f"deletion_vector_{uuid}.bin"


def _from_block(block: bytes) -> BitMap64:
    from pyroaring import BitMap64

    if block[: len(_MAGIC)] != _MAGIC:
        raise VectorUnreadable("not a bitmap of the portable form")
    return BitMap64.deserialize(block[len(_MAGIC) :])


def _encode_85(data: bytes) -> str:
    return base64.b85encode(data).translate(bytes.maketrans(_PYTHON_85, _Z85)).decode("ascii")


def _decode_85(text: str) -> bytes:
    try:
        return base64.b85decode(text.encode("ascii").translate(bytes.maketrans(_Z85, _PYTHON_85)))
    except ValueError as error:
        raise VectorUnreadable(f"{text!r} is not base 85") from error

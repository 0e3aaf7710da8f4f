"""Which files a load reads: refused by name, before anything is started."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from iscp_dagster.errors import UsageError
from iscp_dagster.sources.storage import local_path, provider_of

ENDINGS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
"""Which format an ending tells."""

_COMPRESSED = (".gz", ".bz2")  # Spark tells these by the ending, too
_PATTERN = re.compile(r"[*?\[\]{}\\]")
_MAGIC = b"PAR1"


def choose_files(files: Sequence[str], file_format: str | None) -> tuple[tuple[str, ...], str]:
    """Return the paths to read and their one format; refuse what is no file that can be read.

    Args:
        files: Paths or uris, as the user wrote them.
        file_format: Of all of them; default by their ending.
    """
    if not files:
        raise UsageError("files: none given")
    formats = {file_format or _format_of(file) for file in files}
    if len(formats) > 1:
        raise UsageError(
            f"files: {' and '.join(sorted(formats))} in one load",
            cure="load one format at a time, or say --format",
        )
    chosen = formats.pop()
    if chosen not in ENDINGS.values():
        raise UsageError(f"format: {chosen!r} is not known", cure="it is parquet, csv or json")
    return tuple(_checked(file, chosen) for file in files), chosen


def _format_of(file: str) -> str:
    name = file.lower()
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    for ending, file_format in ENDINGS.items():
        if name.endswith(ending):
            return file_format
    if provider_of(file) == "local" and local_path(file).is_dir():
        raise _folder(file)
    raise UsageError(
        f"files: {file!r} does not tell its format",
        cure=f"say --format, or let it end in {', '.join(ENDINGS)}",
    )


def _checked(file: str, file_format: str) -> str:
    """The path that Spark gets."""
    if _PATTERN.search(file):
        raise UsageError(
            f"files: {file!r} is a pattern",
            cure=r"name the files, or let the shell do it; no name may have one of *?[]{}\ in it",
        )
    if provider_of(file) != "local":
        path = file
    else:
        found = local_path(file).expanduser().absolute()
        _check_local(found, file, file_format)
        path = str(found)
    if path.rpartition("/")[2].startswith((".", "_")):
        raise UsageError(f"files: Spark passes over names like {file!r}", cure="rename the file")
    return path


def _check_local(path: Path, file: str, file_format: str) -> None:
    if path.is_dir():
        raise _folder(file)
    if not path.is_file():
        raise UsageError(f"files: there is no file {file!r}")
    try:
        with path.open("rb") as opened:
            start = opened.read(len(_MAGIC))
    except OSError as error:
        raise UsageError(f"files: {file!r} can't be read: {error.strerror}") from error
    if file_format == "parquet" and start != _MAGIC:
        raise UsageError(f"files: {file!r} is no Parquet file")


def _folder(file: str) -> UsageError:
    return UsageError(f"files: {file!r} is a folder", cure="name the files in it")

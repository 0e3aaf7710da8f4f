"""Which embedders there are: `wordllama`, and plug-ins found by entry point.

An *embedder* turns a batch of texts into vectors of one dimension. Its name and *version* are
written into every index that uses it: another version would give vectors that don't compare. A
plug-in is a function without arguments that returns an embedder, offered by an installed package
in the entry-point group `iscp_dagster.embedders`. A name from the log only selects among these.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from iscp_dagster.errors import EmbedderMissing

if TYPE_CHECKING:
    import numpy as np

GROUP = "iscp_dagster.embedders"


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors; the same text gives the same vector, on every machine."""

    @property
    def version(self) -> str:
        """Changes whenever the vectors do."""
        ...

    @property
    def dimension(self) -> int:
        """How many numbers a vector has."""
        ...

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return one row of float32 for each text."""
        ...


def embedder_names() -> tuple[str, ...]:
    """Return the names a spec may use."""
    return tuple(sorted({"wordllama", *entry_points(group=GROUP).names}))


@cache
def get_embedder(name: str) -> Embedder:
    """Load an embedder; once in a process.

    Raises:
        EmbedderMissing: None of that name, or what it needs is not installed.
    """
    if name == "wordllama":
        from iscp_dagster.embedders.wordllama import WordLlama

        return WordLlama.load()
    for point in entry_points(group=GROUP):
        if point.name == name:
            found = point.load()()
            if isinstance(found, Embedder):
                return found
            raise EmbedderMissing(f"embedder: the plug-in {name!r} is no embedder")
    raise EmbedderMissing(
        f"embedder: {name!r} is unknown", cure=f"known: {', '.join(embedder_names())}"
    )

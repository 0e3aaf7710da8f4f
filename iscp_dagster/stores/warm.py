"""What was used last, kept in memory for the next time.

A value has a *weight*, such as its bytes. Past `most` values or `most_weight` in all, those that
were not used for longest go.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Warm(Generic[V]):
    """A bounded cache that many threads may use at once."""

    def __init__(self, most: int, most_weight: int | None = None) -> None:
        self._most = most
        self._most_weight = most_weight
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        """Return a value; None when it is not there (any more)."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: V, weight: int = 0) -> None:
        """Keep a value, in place of the one that the key had; one that is too heavy is not kept."""
        with self._lock:
            self._forget(key)
            self._values[key] = (value, weight)
            self._weight += weight
            while self._values and self._is_full():
                self._forget(next(iter(self._values)))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._weight = 0

    def __len__(self) -> int:
        return len(self._values)

    def _is_full(self) -> bool:
        heavy = self._most_weight is not None and self._weight > self._most_weight
        return heavy or len(self._values) > self._most

    def _forget(self, key: Hashable) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self._weight -= found[1]

"""Changing the demo's table all the time, so that there is something to see."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from iscp_dagster.demo.story import change_some, demo_table_uri, make_demo
from iscp_dagster.settings import Settings

_EVERY_SECONDS = 12.0
_ROWS = 40


@contextmanager
def changing(settings: Settings, say: Callable[[str], None]) -> Iterator[None]:
    """Make the demo's table if it is not there, and change it until the block ends."""
    uri = demo_table_uri(settings)
    if not (uri / "_delta_log").is_dir():
        make_demo(settings)
        say("made the demo's table; reload the code location in the UI to see its assets")
    ended = threading.Event()
    worker = threading.Thread(target=_change, args=(uri, ended), name="iscp-live", daemon=True)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()


def _change(uri, ended: threading.Event) -> None:
    chance = random.Random(42)
    while not ended.wait(_EVERY_SECONDS):
        change_some(uri, chance, _ROWS)

"""Changing the demo's table all the time, so that there is something to see."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from iscp_dagster.demo.corpus import standard_library
from iscp_dagster.demo.library import demo_table_uri, is_made, make_demo, put
from iscp_dagster.settings import Settings

EVERY_SECONDS = 12.0
_ROWS = 40


def ensure_demo(settings: Settings, say: Callable[[str], None]) -> None:
    """Make the demo's table and its indexes if they are not there."""
    if not is_made(settings):
        make_demo(settings)
        say("made the demo's table and registered its indexes")


@contextmanager
def changing(settings: Settings) -> Iterator[None]:
    """Change the demo's table until the block ends."""
    uri = demo_table_uri(settings)
    ended = threading.Event()
    worker = threading.Thread(target=_change, args=(uri, ended), name="iscp-live", daemon=True)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()


def _change(uri: Path, ended: threading.Event) -> None:
    from deltalake.exceptions import DeltaError

    docs = standard_library()
    chance = random.Random(42)
    while not ended.wait(EVERY_SECONDS):
        edited = [
            replace(doc, doc=f"{doc.doc}\n\nRead again ({chance.randrange(1000)}).")
            for doc in chance.sample(docs, _ROWS)
        ]
        # The demo may be starting over just now.
        with suppress(DeltaError):
            put(uri, edited)

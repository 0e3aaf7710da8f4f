"""A process that writes to an index, told line by line what to do; see `test_lance_processes`.

`stage END`: read where the index stands, and stage the window from there to version END.
`commit`: commit it; answers `won` or `lost`.
`run`: apply one window after the other until killed, a line for each.
`optimize`: maintain the index until killed.
"""

from __future__ import annotations

import sys

from iscp_dagster.errors import IndexContended
from iscp_dagster.rules.model import Window
from iscp_dagster.stores.lance_index import LanceIndex
from iscp_dagster.stores.lance_upkeep import optimize
from iscp_dagster_tests.stores.lance_history import apply, stage, tidy, ts


def say(line: str) -> None:
    print(line, flush=True)


def main(uri: str) -> None:
    index = LanceIndex(uri, 7)
    since, window, staged = None, None, None
    say("ready")
    for line in sys.stdin:
        match line.split():
            case ["stage", end]:
                since = index.standing()
                assert since is not None
                window = Window(since.watermark, ts(int(end)))
                staged = stage(index, since.watermark.version, int(end))
                say("staged")
            case ["commit"]:
                assert since is not None
                assert window is not None
                assert staged is not None
                try:
                    index.commit(since, window, staged)
                except IndexContended:
                    say("lost")
                else:
                    tidy(index)
                    say("won")
            case ["run"]:
                while True:
                    standing = index.standing()
                    assert standing is not None
                    apply(index, standing.watermark.version + 1)
                    say("applied")
            case ["optimize"]:
                while True:
                    optimize(index)
                    say("optimized")


if __name__ == "__main__":
    main(sys.argv[1])

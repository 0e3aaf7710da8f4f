"""The control row of a Lance index: where the index stands, and what it is built from.

It has a key that no other row has, and a fragment of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iscp_dagster.rules.model import TS
from iscp_dagster.stores.warm import Warm

if TYPE_CHECKING:
    from lance import LanceDataset

KEY = "_pk"
CONTROL = "_ctl"
CONTROL_KEY = "*"
"""The control row's key; a canonical key is a JSON array and never looks like it."""
_controls: Warm[str] = Warm(100)


@dataclass(frozen=True, slots=True)
class LanceStanding:
    """Where an index stands: what its control row says."""

    version: int
    """The dataset's own version."""
    watermark: TS
    generation: int
    build: dict[str, Any]
    """What the index is built from, fixed when it was made."""
    rows: int
    sequence: int
    """How many commits the control row has seen: tells two standings at one watermark apart."""
    mark: tuple[str, ...] = ()
    """The files that were read for it; another commit, or another index, has others."""


def read_control(dataset: LanceDataset) -> LanceStanding | None:
    """Read the control row of a dataset; None when it has none."""
    alone = [one for one in dataset.get_fragments() if one.metadata.physical_rows == 1]
    if not alone:
        return None
    # A file is never written twice: what it says is read once.
    files = tuple(str(file.path) for one in alone for file in one.data_files())
    text = _controls.get(files)
    if text is None:
        found = dataset.scanner(
            columns=[CONTROL], filter=f"{CONTROL} IS NOT NULL", fragments=alone
        ).to_table()
        if found.num_rows != 1:
            return None
        text = found[CONTROL][0].as_py()
        _controls.put(files, text)
    control = json.loads(text)
    return LanceStanding(
        version=dataset.version,
        watermark=TS.parse(control["watermark"]),
        generation=control["generation"],
        build=control["build"],
        rows=dataset.count_rows() - 1,
        sequence=control["sequence"],
        mark=files,
    )


def control_row(standing: LanceStanding) -> dict[str, str]:
    """Return the control row that says where an index stands."""
    control = {
        "generation": standing.generation,
        "watermark": str(standing.watermark),
        "sequence": standing.sequence,
        "build": standing.build,
    }
    return {KEY: CONTROL_KEY, CONTROL: json.dumps(control)}

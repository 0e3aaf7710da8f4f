"""The Dagster entry: the log's tables and jobs become assets, sensors keep the indexes fresh.

New jobs appear after the code location reloads.
"""

from __future__ import annotations

from iscp_dagster.orchestration.build import build_definitions
from iscp_dagster.settings import Settings

defs = build_definitions(Settings.from_env())

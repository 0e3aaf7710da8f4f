"""One Dagster instance for `iscp`, `make` and plain `dagster dev`.

Dagster reads only the dagster.yaml inside its home. So the project's own file (the one in the
working folder, else the one that came with the package) is copied there, with the paths that it
keeps below `.iscp` pointing at the home, wherever that is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from iscp_dagster.errors import UsageError
from iscp_dagster.settings import Settings

if TYPE_CHECKING:
    from dagster import DagsterInstance

CONFIG_NAME = "dagster.yaml"
_HOME_IN_CONFIG = ".iscp"
_MEND = f"mend {CONFIG_NAME} in the project's folder"


def prepare_home(settings: Settings) -> Path:
    """Make the home ready to be Dagster's, and the environment point at it."""
    config = _rendered(_project_config(), settings.home)
    target = settings.home / CONFIG_NAME
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text(encoding="utf-8") != config:
            temporary = target.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(config, encoding="utf-8")
            temporary.replace(target)
    except OSError as error:
        raise UsageError(
            f"ISCP_HOME: {settings.home} can't be written: {error.strerror}",
            cure="set ISCP_HOME to a folder that can",
        ) from error
    os.environ["DAGSTER_HOME"] = str(settings.home)
    return settings.home


@contextmanager
def open_instance(settings: Settings) -> Iterator[DagsterInstance]:
    """Open the Dagster instance of the home."""
    from dagster import DagsterInstance, DagsterInvalidConfigError

    home = prepare_home(settings)
    try:
        instance = DagsterInstance.get()
    except DagsterInvalidConfigError as error:
        raise UsageError(f"{home / CONFIG_NAME}: {_one_line(error)}", cure=_MEND) from error
    with instance:
        yield instance


def _project_config() -> str:
    for folder in (Path.cwd(), Path(__file__).parents[1], Path(__file__).parents[2]):
        if (folder / CONFIG_NAME).is_file():
            return (folder / CONFIG_NAME).read_text(encoding="utf-8")
    raise UsageError(f"{CONFIG_NAME} is missing", cure="install iscp_dagster again")


def _rendered(config: str, home: Path) -> str:
    import yaml

    try:
        values = yaml.safe_load(config) or {}
    except yaml.YAMLError as error:
        raise UsageError(f"{CONFIG_NAME}: {_one_line(error)}", cure=_MEND) from error
    if not isinstance(values, dict):
        raise UsageError(f"{CONFIG_NAME}: not a mapping of settings", cure=_MEND)
    return yaml.safe_dump(_placed(values, home), sort_keys=False)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _placed(value: object, home: Path) -> object:
    """Point every path below `.iscp` at the home."""
    if isinstance(value, dict):
        return {name: _placed(part, home) for name, part in value.items()}
    if isinstance(value, list):
        return [_placed(part, home) for part in value]
    if isinstance(value, str) and (value + "/").startswith(_HOME_IN_CONFIG + "/"):
        return str(home) + value.removeprefix(_HOME_IN_CONFIG)
    return value

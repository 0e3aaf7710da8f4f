from __future__ import annotations

from pathlib import Path

import pytest

from iscp_dagster.consumers.base import Consumer
from iscp_dagster.consumers.mirror import Mirror
from iscp_dagster.consumers.registry import consumer_types, get_consumer_class
from iscp_dagster.errors import UsageError

PLUG_IN = '''
from iscp_dagster.consumers.mirror import Mirror

class Twin(Mirror):
    """A mirror by another name."""
    type = "twin"

not_a_consumer = "just text"
'''
ENTRY_POINTS = """
[iscp_dagster.consumers]
twin = twin_plug_in:Twin
broken = twin_plug_in:not_a_consumer
mirror = twin_plug_in:Twin
"""


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package outside ours, installed the way pip leaves one."""
    (tmp_path / "twin_plug_in.py").write_text(PLUG_IN)
    info = tmp_path / "twin_plug_in-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twin-plug-in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)


def test_the_built_in_consumers_are_known() -> None:
    assert {"aggregate", "lookup", "mirror"} <= set(consumer_types())
    assert get_consumer_class("mirror") is Mirror


@pytest.mark.usefixtures("plug_in")
def test_a_plug_in_is_found_by_entry_point() -> None:
    assert "twin" in consumer_types()
    found = get_consumer_class("twin")
    assert issubclass(found, Consumer)
    assert found.type == "twin"


@pytest.mark.usefixtures("plug_in")
def test_a_plug_in_never_replaces_a_built_in_consumer() -> None:
    assert get_consumer_class("mirror") is Mirror


@pytest.mark.usefixtures("plug_in")
def test_an_entry_point_that_is_no_consumer_is_refused() -> None:
    with pytest.raises(UsageError, match="'broken' is no subclass of Consumer"):
        get_consumer_class("broken")


@pytest.mark.parametrize("name", ["nope", "os.system", "iscp_dagster.consumers.mirror:Mirror", ""])
def test_an_unknown_type_is_refused_and_never_imported(name: str) -> None:
    with pytest.raises(UsageError, match="is unknown"):
        get_consumer_class(name)

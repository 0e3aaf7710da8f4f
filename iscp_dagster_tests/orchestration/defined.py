"""Definitions as plain values, to look at and to compare."""

from __future__ import annotations

from typing import Any

from dagster import (
    AssetKey,
    AssetsDefinition,
    Definitions,
    ScheduleDefinition,
    SensorDefinition,
)
from dagster._core.definitions.assets.graph.asset_graph import AssetNode


def node_of(definitions: Definitions, path: str) -> AssetNode:
    """The asset of a key written `a/b/c`."""
    return definitions.resolve_asset_graph().get(AssetKey(path.split("/")))


def asset_paths(definitions: Definitions) -> list[str]:
    """The keys of all assets."""
    keys = definitions.resolve_asset_graph().get_all_asset_keys()
    return sorted(key.to_user_string() for key in keys)


def in_plain_words(definitions: Definitions) -> dict[str, Any]:
    """Everything a user of the UI would notice if it changed."""
    return {
        "assets": {path: _asset(definitions, path) for path in asset_paths(definitions)},
        "sensors": {
            sensor.name: _sensor(sensor)
            for sensor in definitions.sensors or ()
            if isinstance(sensor, SensorDefinition)
        },
        "schedules": {
            schedule.name: {
                "job": schedule.job_name,
                "cron": schedule.cron_schedule,
                "default_status": schedule.default_status.value,
            }
            for schedule in definitions.schedules or ()
            if isinstance(schedule, ScheduleDefinition)
        },
        "jobs": {
            job.name: job.description
            for job in definitions.resolve_all_job_defs()
            if not job.name.startswith("__")
        },
        "resources": sorted(definitions.resources or ()),
    }


def _asset(definitions: Definitions, path: str) -> dict[str, Any]:
    node = node_of(definitions, path)
    assets = node.assets_def
    assert isinstance(assets, AssetsDefinition)
    partitions = node.partitions_def
    return {
        "op": assets.op.name,
        "can_subset": assets.can_subset,
        "materializable": node.is_materializable,
        "observable": node.is_observable,
        "group": node.group_name,
        "kinds": sorted(node.kinds or ()),
        "owners": list(node.owners),
        "deps": sorted(key.to_user_string() for key in node.parent_keys),
        "partitions": None if partitions is None else getattr(partitions, "name", str(partitions)),
        "checks": sorted(key.name for key in node.check_keys),
        "description": (node.description or "").splitlines(),
        "metadata": {
            name: _plain(value) for name, value in node.metadata.items() if "code" not in name
        },
    }


def _sensor(sensor: SensorDefinition) -> dict[str, Any]:
    return {
        "description": sensor.description,
        "every_seconds": sensor.minimum_interval_seconds,
        "default_status": sensor.default_status.value,
    }


def _plain(value: Any) -> Any:
    columns = getattr(value, "columns", None)
    if columns is not None:
        return [f"{column.name}: {column.type}" for column in columns]
    return getattr(value, "value", value)

"""Asking a running Dagster webserver, as its UI does."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from typing import Any

REPOSITORY = {
    "repositoryName": "__repository__",
    "repositoryLocationName": "iscp_dagster.definitions",
}


@dataclass(frozen=True)
class Webserver:
    """A webserver on loopback."""

    port: int

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the data that a GraphQL query or mutation answers with."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            json.dumps({"query": query, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)
        assert "errors" not in found, found["errors"]
        return found["data"]

    def assets(self) -> dict[str, dict[str, Any]]:
        """What the lineage and the asset pages show, by key."""
        nodes = self.ask(_ASSETS)["assetNodes"]
        return {"/".join(node["assetKey"]["path"]): node for node in nodes}

    def sensor(self, name: str = "iscp_runner") -> dict[str, Any]:
        """A sensor with its newest ticks."""
        return self.ask(_SENSOR, selector={**REPOSITORY, "sensorName": name})["sensorOrError"]

    def turn(self, on: bool, name: str = "iscp_runner") -> None:
        """Turn a sensor on or off, for good.

        A tick that ends just now writes back the state it has read a moment before: like somebody
        who sees the switch jump back, this tries again once no tick is under way.
        """
        wanted = "RUNNING" if on else "STOPPED"
        while True:
            state = self.sensor(name)["sensorState"]
            if state["status"] != wanted and on:
                self.ask(_START, selector={**REPOSITORY, "sensorName": name})
            elif state["status"] != wanted:
                self.ask(_STOP, id=state["id"])
            elif not any(tick["status"] == "STARTED" for tick in state["ticks"]):
                return

    def runs(self, **tags: str) -> list[dict[str, Any]]:
        """The runs with these tags (`__` for `/`), newest first."""
        wanted = [
            {"key": name.replace("__", "/").replace("iscp_job", "iscp.job"), "value": value}
            for name, value in tags.items()
        ]
        return self.ask(_RUNS, filter={"tags": wanted})["runsOrError"]["results"]


_ASSETS = """{ assetNodes {
  assetKey { path } groupName kinds description isObservable
  owners { ... on TeamAssetOwner { team } }
  dependencyKeys { path }
  metadataEntries { ...entry }
  assetMaterializations(limit: 1) { partition metadataEntries { ...entry } }
} }
fragment entry on MetadataEntry {
  label
  __typename
  ... on TextMetadataEntry { text }
  ... on IntMetadataEntry { intValue }
  ... on FloatMetadataEntry { floatValue }
  ... on TableSchemaMetadataEntry { schema { columns { name type } } }
  ... on TableColumnLineageMetadataEntry {
    lineage { columnName columnDeps { columnName assetKey { path } } }
  }
}"""
_SENSOR = """query ($selector: SensorSelector!) { sensorOrError(sensorSelector: $selector) {
  ... on Sensor { sensorState { id status ticks(limit: 30) { timestamp status skipReason } } }
} }"""
_START = """mutation ($selector: SensorSelector!) {
  startSensor(sensorSelector: $selector) { ... on Sensor { name } ... on PythonError { message } }
}"""
_STOP = """mutation ($id: String!) {
  stopSensor(id: $id) { __typename ... on PythonError { message } }
}"""
_RUNS = """query ($filter: RunsFilter!) { runsOrError(filter: $filter) {
  ... on Runs { results { runId status tags { key value } } }
} }"""

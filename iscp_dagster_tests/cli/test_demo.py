"""The demo, as a user runs it, and what it would say if an index were wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from dagster import AssetKey, TableColumnLineage, TableSchema
from deltalake import DeltaTable

from iscp_dagster.demo import live
from iscp_dagster.demo.corpus import Doc, standard_library
from iscp_dagster.demo.library import DELETED, NEW_MODULE, Batch, demo_table_uri
from iscp_dagster.demo.proof import Proof
from iscp_dagster.demo.questions import QUESTIONS, Answer, Hits
from iscp_dagster.demo.story import DemoReport
from iscp_dagster.orchestration.instance import open_instance
from iscp_dagster.settings import Settings
from iscp_dagster_tests.conftest import settings_in


def run(home: Path, *options: str) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("iscp"), "demo", *options],
        env={**os.environ, "ISCP_HOME": str(home), "COLUMNS": "80"},
        cwd=home.parent,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.spark
def test_the_demo_runs_twice_and_keeps_its_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = tmp_path / "home"
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    report = json.loads(run(home, "--json"))
    assert report["problems"] == []
    assert report["rows"] > 2000
    assert min(report["edited"], report["added"], report["deleted"]) > 0
    assert report["scans"] == [4]
    assert {job: proof["same"] for job, proof in report["proofs"].items()} == dict.fromkeys(
        ("words", "meaning", "by_module", "per_module"), True
    )
    assert {job["version"] for job in report["jobs"]} == {3}
    versions = {phase: {one["version"] for one in report[phase]} for phase in PHASES}
    assert versions == {"before": {0}, "stale": {0}, "fresh": {3}, "after": {3}}
    found = {phase: report[phase][0]["found"] for phase in PHASES}
    assert found["before"] == found["stale"] == "nothing"
    assert found["fresh"] == found["after"] == f"{NEW_MODULE}.samovar (+1)"

    the_asset_pages_show_columns_and_where_they_come_from(settings_in(home))

    told = run(home)
    assert "every index equals a build from scratch" in told
    assert "one scan of the changes" in told
    for command in ("iscp dev", "iscp table add", "iscp register", "iscp sync"):
        assert command in told
    (words,) = (line for line in told.splitlines() if line.startswith(" words") and "full" in line)
    assert words.split()[1:4] == ["fulltext", "default", "completed"]
    assert words.split()[5:] == ["0.0", str(report["proofs"]["words"]["rows"])]


def the_asset_pages_show_columns_and_where_they_come_from(settings: Settings) -> None:
    shown = {
        "words": {name: [name] for name in ("name", "doc", "module", "kind")},
        "meaning": {**{name: [name] for name in ("name", "module", "kind")}, "vector": ["doc"]},
        "by_module": {name: [name] for name in ("name", "module", "kind", "signature")},
        "per_module": {
            "module": ["module"],
            "count": ["module"],
            "sum_doc_chars": ["doc_chars"],
            "max_doc_chars": ["doc_chars"],
        },
    }
    with open_instance(settings) as instance:
        for job, columns in shown.items():
            event = instance.get_latest_materialization_event(
                AssetKey(["sys", "demo", "stdlib", job])
            )
            assert event is not None
            assert event.asset_materialization is not None
            metadata = event.asset_materialization.metadata
            schema = metadata["dagster/column_schema"].value
            assert isinstance(schema, TableSchema)
            assert {column.name for column in schema.columns} == set(columns)
            lineage = metadata["dagster/column_lineage"].value
            assert isinstance(lineage, TableColumnLineage)
            assert columns == {
                name: [made_from.column_name for made_from in deps]
                for name, deps in lineage.deps_by_column.items()
            }


PHASES = ("before", "stale", "fresh", "after")


def test_the_batch_edits_deletes_and_adds():
    docs = standard_library()
    batch = Batch.of(docs)
    first, edited, deleted, last = batch.versions_of(docs)
    assert first == docs
    assert len(edited) == len(docs)
    assert sum(a != b for a, b in zip(first, edited, strict=True)) == len(batch.edited)
    assert {doc.name for doc in edited} - {doc.name for doc in deleted} >= {DELETED}
    assert {doc.module for doc in last} - {doc.module for doc in docs} == {NEW_MODULE}


def test_live_changes_keep_coming_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ISCP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.01)
    settings = Settings.from_env()
    said: list[str] = []
    for _ in range(2):
        live.ensure_demo(settings, said.append)
    assert len(said) == 1
    log = demo_table_uri(settings) / "_delta_log"
    with live.changing(settings):
        deadline = time.monotonic() + 60
        while not (log / f"{2:020}.json").exists():
            assert time.monotonic() < deadline
    table = DeltaTable(str(demo_table_uri(settings)))
    assert "Read again" in str(table.to_pyarrow_table(columns=["doc"])["doc"].to_pylist())
    assert not any(thread.name == "iscp-live" for thread in threading.enumerate())


DOCS = [
    Doc("random.shuffle", "random", "function", "(x)", "Shuffle list x in place."),
    Doc("random.seed", "random", "function", "(a)", "Start over."),
    Doc("teahouse.samovar", "teahouse", "function", "()", "The samovar is hot."),
]


def hits(docs: Sequence[Doc]) -> Hits:
    return [{"key": {"name": doc.name}, "score": 1.0} for doc in docs]


@pytest.mark.parametrize(
    ("query", "right", "wrong"),
    [
        ("samovar", hits(DOCS[2:]), hits([])),
        ("shuffle", hits(DOCS[:1]), hits(DOCS)),
        ("a hot drink", hits(DOCS[2:]), hits(DOCS)),
        ("module=teahouse", hits(DOCS[2:]), hits(DOCS[1:])),
        (
            "module=random",
            [{"count": 2, "sum_doc_chars": sum(len(doc.doc) for doc in DOCS[:2])}],
            [{"count": 3, "sum_doc_chars": sum(len(doc.doc) for doc in DOCS[:2])}],
        ),
    ],
)
def test_a_wrong_answer_is_told_from_a_right_one(query: str, right: Hits, wrong: Hits):
    (question,) = (one for one in QUESTIONS if one.query == query)
    assert question.claim(right, DOCS) is True
    assert question.claim(wrong, DOCS) is False


def test_whatever_is_wrong_is_a_problem():
    answer = Answer("words", "samovar", 3, False, "nothing", 0, 0.1, right=True)
    report = DemoReport(
        table="demo.stdlib",
        uri="",
        rows=3,
        edited=1,
        added=1,
        deleted=1,
        first_sync_seconds=1.0,
        second_sync_seconds=1.0,
        seconds=3.0,
        scans=[1],
        before=[answer],
        stale=[answer],
        fresh=[answer],
        after=[answer],
        proofs={"words": Proof(3, True)},
        jobs=[{}],
    )
    assert report.problems == []
    wrong = replace(answer, right=False)
    assert replace(report, fresh=[wrong]).problems == ["words: 'samovar' at v3 found nothing"]
    assert replace(report, proofs={"words": Proof(2, False)}).problems == [
        "words: differs from a build from scratch"
    ]
    assert replace(report, scans=[0, 1]).problems == ["a scan fed 0 indexes, not all"]

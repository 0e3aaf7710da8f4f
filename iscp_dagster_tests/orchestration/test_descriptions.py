"""Tests of what the UI says about tables and indexes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from iscp_dagster.orchestration.descriptions import describe_job, describe_table, trigger_in_words
from iscp_dagster.rules.model import Job, Table, TableKey
from iscp_dagster.rules.spec import TriggerSpec, parse_spec
from iscp_dagster_tests.rules.builders import T0, job

KEY = TableKey("sys", "shop", "items")
TABLE = Table(KEY, 1, "/data/items", ("id", "region"), "d", T0)
URI = "/warehouse/_iscp/sys/shop/items/by_section/7"


def index(**spec: Any) -> Job:
    return replace(job("by_section", table=KEY, job_id=7), spec=parse_spec(spec))


def test_an_index_says_what_it_holds_when_it_runs_and_how_to_ask_it() -> None:
    text = describe_job(
        index(type="lookup", columns=["name"], options={"by": "section"}), TABLE, URI
    )
    what, trigger, stored, search, example = text.split("\n\n")
    assert what == "`lookup` index on `name` with by = `section` of `shop.items`."
    assert trigger.startswith("**Trigger**: default: after each change")
    assert stored == f"**Stored** at `{URI}` (generation 7)."
    assert search == "```sh\niscp search shop.items by_section section=VALUE\n```"
    fence, query, end = example.split("\n")
    assert (fence, end) == ("```sql", "```")
    assert query.startswith("select ")
    assert f"delta.`{URI}`" in query


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({"type": "fulltext", "columns": ["doc"]}, "'some words'"),
        ({"type": "vector", "options": {"embedder": "wordllama"}}, "'what it is about'"),
        ({"type": "vector", "columns": ["v"]}, "--vector '[0.1, 0.2, …]'"),
        ({"type": "aggregate", "options": {"group_by": "a, b"}}, "a=VALUE"),
        ({"type": "mirror"}, "id=VALUE"),
        ({"type": "lookup", "options": {"by": "a'b\n```"}}, """'a'"'"'b ```=VALUE'"""),
    ],
)
def test_every_index_shows_the_command_that_asks_it(spec: dict[str, Any], asked: str) -> None:
    text = describe_job(index(**spec), TABLE, URI)
    assert f"```sh\niscp search shop.items by_section {asked}\n```" in text
    assert ("```sql" in text) == (spec["type"] not in ("fulltext", "vector"))


def test_the_user_s_own_words_come_first() -> None:
    text = describe_job(index(type="mirror", description="For the *front page*."), TABLE, URI)
    assert text.startswith("For the *front page*.\n\n`mirror` index of `shop.items`.")


def test_an_unknown_type_has_its_reason_in_place_of_an_example() -> None:
    text = describe_job(index(type="graph"), TABLE, URI)
    assert "`graph` index of `shop.items`" in text
    assert "-- type: 'graph' is unknown" in text


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "default: after each change, in one scan with the table's other jobs."),
        ({"kind": "greedy"}, "greedy: after each change, in a scan of its own."),
        ({"kind": "periodic", "interval": "90s"}, "periodic: every 90s."),
        (
            {"kind": "periodic", "interval": "3600s", "share": True},
            "periodic: every 1h, sharing a scan where one is due.",
        ),
        ({"kind": "nightly"}, "`nightly` (a plug-in)."),
    ],
)
def test_a_trigger_is_told_in_words(spec: dict[str, Any], words: str) -> None:
    assert trigger_in_words(TriggerSpec.model_validate(spec)) == words


def test_an_independent_job_does_not_claim_to_share() -> None:
    for spec in ({}, {"kind": "periodic", "interval": "5m", "share": True}):
        words = trigger_in_words(TriggerSpec.model_validate({**spec, "independent": True}))
        assert "never waits" in words
        assert "one scan with" not in words
        assert "sharing" not in words


@pytest.mark.parametrize(
    ("jobs", "words"), [(0, "no index yet"), (1, "one index"), (3, "3 indexes")]
)
def test_a_table_says_where_it_is_its_key_and_how_many_indexes(jobs: int, words: str) -> None:
    assert describe_table(TABLE, jobs) == (
        f"Delta table at `/data/items`, key `id`, `region`, {words}."
    )


def test_text_from_outside_can_not_leave_its_quotes() -> None:
    odd = index(type="mirror", options={"where": "name = '`x`\n\n# boo'"}, columns=["a`b"])
    (what, *_) = describe_job(odd, TABLE, URI).split("\n\n**Trigger**")
    assert "\n" not in what
    assert "# boo" in what
    assert "``" in what

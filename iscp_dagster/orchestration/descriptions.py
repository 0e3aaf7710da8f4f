"""What the Dagster UI says about a table or an index, in Markdown."""

from __future__ import annotations

import shlex

from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.errors import UsageError
from iscp_dagster.rules.model import DEFAULT_ACCOUNT, Job, Table
from iscp_dagster.rules.spec import TriggerSpec, format_duration


def describe_table(table: Table, jobs: int) -> str:
    """Describe a source table."""
    key = ", ".join(map(_code, table.pk))
    indexes = {0: "no index yet", 1: "one index"}.get(jobs, f"{jobs} indexes")
    return f"Delta table at {_code(table.uri)}, key {key}, {indexes}."


def describe_job(job: Job, table: Table, uri: str) -> str:
    """Describe an index: what it holds, when it is brought up to date, how to ask it."""
    paragraphs = [
        job.spec.description,
        f"{_what(job)} of `{table.key.db}.{table.key.table}`.",
        f"**Trigger**: {trigger_in_words(job.spec.trigger)}",
        f"**Stored** at {_code(uri)} (generation {job.job_id}).",
        *_examples(job, table, uri),
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def trigger_in_words(trigger: TriggerSpec) -> str:
    """Say when a job runs, in one sentence."""
    alone = " It never waits for the table's other jobs." if trigger.independent else ""
    match trigger.kind:
        case "default":
            scan = "a scan of its own" if alone else "one scan with the table's other jobs"
            return f"default: after each change, in {scan}.{alone}"
        case "greedy":
            return "greedy: after each change, in a scan of its own."
        case "periodic" if trigger.interval is not None:
            share = ", sharing a scan where one is due" if trigger.share and not alone else ""
            return f"periodic: every {format_duration(trigger.interval)}{share}.{alone}"
        case _:
            return f"{_code(trigger.kind)} (a plug-in).{alone}"


def _what(job: Job) -> str:
    columns = ", ".join(map(_code, job.spec.columns))
    options = ", ".join(
        f"{name} = {_code(text)}" for name, text in sorted(job.spec.options.items())
    )
    parts = [f"{_code(job.spec.type)} index"]
    if columns:
        parts.append(f"on {columns}")
    if options:
        parts.append(f"with {options}")
    return " ".join(parts)


def _code(text: str) -> str:
    """Quote a text for Markdown; one with a backquote in it takes two on each side."""
    line = " ".join(text.split())
    return f"`` {line} ``" if "`" in line else f"`{line}`"


def _examples(job: Job, table: Table, uri: str) -> list[str]:
    """Show how to ask the index: from a shell, and in SQL where any engine can."""
    shell = f"```sh\n{_search(job, table)}\n```" if job.spec.type in _QUESTIONS else ""
    try:
        consumer = get_consumer_class(job.spec.type)
        sql = "" if "lance" in consumer.kinds else consumer.example_query(job.spec, uri)
    except UsageError as unknown:
        sql = f"-- {unknown.message}"
    return [shell, f"```sql\n{sql}\n```" if sql else ""]


_QUESTIONS = {"fulltext", "vector", "lookup", "aggregate", "mirror"}


def _search(job: Job, table: Table) -> str:
    words = ["iscp", "search", f"{table.key.db}.{table.key.table}", job.key.name]
    match job.spec.type:
        case "fulltext":
            words += ["some words"]
        case "vector" if job.spec.options.get("embedder"):
            words += ["what it is about"]
        case "vector":
            words += ["--vector", "[0.1, 0.2, …]"]
        case _:
            option = {"lookup": "by", "aggregate": "group_by"}.get(job.spec.type, "")
            column = job.spec.options.get(option, "").partition(",")[0].strip()
            words += [f"{column or table.pk[0]}=VALUE"]
    if table.key.account != DEFAULT_ACCOUNT:
        words += ["--account", table.key.account]
    return " ".join(shlex.quote(" ".join(word.split())) for word in words)

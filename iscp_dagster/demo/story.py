"""The demo's story: a table, four indexes, a first sync, changes, a second sync, and the proof.

Everything goes through the public functions that a user would call. The demo checks its own claims:
what a search must find is worked out from the table's rows, and in the end each index is compared
with a build from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Protocol

from iscp_dagster.demo.corpus import Doc
from iscp_dagster.demo.library import JOBS, TABLE, Batch, demo_table_uri, make_demo
from iscp_dagster.demo.proof import Proof, prove
from iscp_dagster.demo.questions import QUESTIONS, Answer, ask
from iscp_dagster.orchestration.instance import open_instance
from iscp_dagster.orchestration.sync import SyncReport, sync
from iscp_dagster.rules.iteration import Iteration
from iscp_dagster.rules.model import TS, TableKey
from iscp_dagster.settings import Settings
from iscp_dagster.views import iteration_views, job_views

_MOST_ITERATIONS = 50


class Stage(Protocol):
    """Where the story is told."""

    def say(self, text: str) -> None:
        """Print a line."""
        ...

    def working(self, text: str, steps: int) -> AbstractContextManager[Callable[[], None]]:
        """Show that something takes a while; what comes back is called after each step."""
        ...

    def show(self, answers: Sequence[Answer]) -> None:
        """Print what the searches found."""
        ...


class Silence:
    """A stage where nothing is shown: the report says it all."""

    def say(self, text: str) -> None:
        """Print nothing."""

    def working(self, text: str, steps: int) -> AbstractContextManager[Callable[[], None]]:
        """Show nothing."""
        return nullcontext(lambda: None)

    def show(self, answers: Sequence[Answer]) -> None:
        """Print nothing."""


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo did and found."""

    table: str
    uri: str
    rows: int
    """How many the table had at first."""
    edited: int
    added: int
    deleted: int
    first_sync_seconds: float
    second_sync_seconds: float
    seconds: float
    scans: list[int]
    """How many indexes each scan of the change feed fed."""
    before: list[Answer]
    stale: list[Answer]
    """Plain searches after the changes: still true, at the version they name."""
    fresh: list[Answer]
    after: list[Answer]
    proofs: dict[str, Proof]
    jobs: list[dict[str, Any]]

    @property
    def problems(self) -> list[str]:
        """What is not as it must be, one line each."""
        answers = (*self.before, *self.stale, *self.fresh, *self.after)
        return [
            *(
                f"{answer.job}: {answer.query!r} at v{answer.version} found {answer.found}"
                for answer in answers
                if not answer.right
            ),
            *(f"{job}: differs from a build from scratch" for job in self._differing()),
            *(f"a scan fed {fed} indexes, not all" for fed in self.scans if fed != len(self.jobs)),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the report for machines."""
        return {**asdict(self), "problems": self.problems}

    def _differing(self) -> list[str]:
        return [job for job, proof in self.proofs.items() if not proof.same]


def run_demo(settings: Settings, stage: Stage) -> DemoReport:
    """Tell the whole story."""
    started = perf_counter()
    uri = demo_table_uri(settings)
    with stage.working("Reading this Python's documentation", 1):
        docs = make_demo(settings)
    stage.say(f"{len(docs)} entries are now a Delta table at {uri}")
    stage.say(f"with four indexes: {', '.join(JOBS)}.")

    with stage.working("First sync: each index is built from a snapshot", len(JOBS)) as step:
        first, first_seconds = _sync(settings, step)
    _say_if_behind(stage, first)
    batch = Batch.of(docs)
    versions = batch.versions_of(docs)
    before = _ask_all(versions)
    stage.show(before)

    batch.commit_to(uri)
    stage.say(
        f"Now the table changes: {len(batch.edited)} entries edited, {len(batch.deleted)} deleted, "
        f"{len(batch.added)} added."
    )
    stale = _ask_all(versions)
    stage.say(f"A plain search still answers as above, for v{stale[0].version}, and says so.")
    stage.say("A fresh one adds what is not indexed yet:")
    fresh = _ask_all(versions, fresh=True, at_least=len(versions) - 1)
    stage.show(fresh)

    with stage.working("Second sync: one scan of the changes feeds all four", 1) as step:
        second, second_seconds = _sync(settings, step)
    _say_if_behind(stage, second)
    after = _ask_all(versions, at_least=len(versions) - 1)
    stage.show(after)

    with stage.working("Comparing each index with a build from scratch", 1):
        jobs = job_views(table=TABLE)
        proofs = prove(uri, {view["job"]: view["uri"] for view in jobs})
    return DemoReport(
        table=TABLE,
        uri=str(uri),
        rows=len(docs),
        edited=len(batch.edited),
        added=len(batch.added),
        deleted=len(batch.deleted),
        first_sync_seconds=round(first_seconds, 1),
        second_sync_seconds=round(second_seconds, 1),
        seconds=round(perf_counter() - started, 1),
        scans=_scans(jobs),
        before=before,
        stale=stale,
        fresh=fresh,
        after=after,
        proofs=proofs,
        jobs=[{**view, "rows": proofs[view["job"]].rows} for view in jobs],
    )


def _ask_all(
    versions: Sequence[Sequence[Doc]], *, fresh: bool = False, at_least: int = 0
) -> list[Answer]:
    return [ask(question, versions, fresh=fresh, at_least=at_least) for question in QUESTIONS]


def _scans(jobs: Sequence[dict[str, Any]]) -> list[int]:
    """Return how many indexes each scan of the change feed fed; a daemon may have run some."""
    ours = {view["job_id"] for view in jobs}
    return [
        len(view["consumers"])
        for view in iteration_views(table=TABLE, limit=_MOST_ITERATIONS)
        if view["from_ts"] != str(TS.zero())
        and ours.issuperset(consumer["job_id"] for consumer in view["consumers"])
    ]


def _say_if_behind(stage: Stage, report: SyncReport) -> None:
    for job, reason in report.behind:
        stage.say(f"  {job.key}: {reason}")


def _sync(settings: Settings, step: Callable[[], None]) -> tuple[SyncReport, float]:
    def told(_iteration: Iteration, _succeeded: bool) -> None:
        step()

    started = perf_counter()
    with open_instance(settings) as instance:
        report = sync(settings, instance, tables=[TableKey.parse(TABLE)], on_iteration=told)
    return report, perf_counter() - started

"""Tests of eight processes that register, alter, claim and drop the same 50 names at random.

How a lost update shows: every worker writes numbers into a spec field that is its own and into the
attempt count by compare-and-set. A write of a whole spec that was read too early would bring back
an older number of somebody else's field; a claim won twice would leave the count too low.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import Job
from iscp_dagster.rules.spec import JobSpec
from iscp_dagster_tests.joblog.crew import Crew
from iscp_dagster_tests.joblog.databases import NOW, add_job, add_table
from iscp_dagster_tests.joblog.worker import FIELDS, START_SPEC

NAMES = 50
TURNS = 150


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What the workers say they did, what is in the log, and what a reader saw meanwhile."""

    workers: list[dict[str, Any]]
    rows: dict[int, Job]
    """Every generation there ever was."""
    live: dict[int, Job]
    followed: dict[int, Job]
    reads: int

    def total(self, what: str) -> Counter[str]:
        """A count of all workers together."""
        return sum((Counter(worker[what]) for worker in self.workers), Counter())


@pytest.fixture(scope="module")
def aftermath(shared_url: str, crew: Crew) -> Aftermath:
    """Let the workers roam, with a reader that follows the changes all the while."""
    with JobLog(shared_url) as log:
        add_table(log)
        followed: dict[int, Job] = {}
        # A first look leaves out what is dropped: the reader begins with a row to stand on.
        add_job(log, "first")
        seen, reads = log.jobs.changes(0).change_seq, 0
        answers = crew.start("roam", url=shared_url, names=NAMES, turns=TURNS)
        working = True
        while working:
            working = not all(answer.done() for answer in answers)
            changes = log.jobs.changes(seen)
            followed.update((job.job_id, job) for job in changes.jobs)
            seen, reads = changes.change_seq, reads + 1
        rows = {job.job_id: job for job in log.jobs.changes(1).jobs}
        live = {job.job_id: job for job in log.jobs.list() if isinstance(job, Job)}
    return Aftermath([answer.result() for answer in answers], rows, live, followed, reads)


def test_the_workers_met_often_enough_to_prove_something(aftermath: Aftermath) -> None:
    assert aftermath.reads > 10
    altered = Counter(job_id for worker in aftermath.workers for job_id in worker["altered"])
    assert sum(workers > 1 for workers in altered.values()) > 20
    assert sum(aftermath.total("registered").values()) > NAMES
    assert sum(aftermath.total("counted").values()) > 20


def test_no_alter_is_lost(aftermath: Aftermath) -> None:
    for worker, (_, read) in zip(aftermath.workers, FIELDS, strict=True):
        for job_id, number in worker["altered"].items():
            assert read(aftermath.rows[int(job_id)].spec) == number


def test_nobody_s_field_is_written_by_another(aftermath: Aftermath) -> None:
    default = START_SPEC.model_dump()
    for job_id, job in aftermath.rows.items():
        if job.key.name != "first":
            for worker, (write, _) in zip(aftermath.workers, FIELDS, strict=True):
                (field,) = write(1)
                if str(job_id) not in worker["altered"]:
                    assert job.spec.model_dump()[field] == default[field]


def test_no_claim_is_won_twice(aftermath: Aftermath) -> None:
    counted = aftermath.total("counted")
    assert {job_id: job.attempt for job_id, job in aftermath.rows.items()} == {
        job_id: counted[str(job_id)] for job_id in aftermath.rows
    }


def test_every_registration_is_a_generation_and_every_drop_ends_one(aftermath: Aftermath) -> None:
    roamed = [job for job in aftermath.rows.values() if job.key.name != "first"]
    assert Counter(job.key.name for job in roamed) == aftermath.total("registered")
    assert Counter(job.key.name for job in roamed if job.drop_at) == aftermath.total("dropped")


def test_a_name_has_at_most_one_living_job_and_it_is_the_newest(aftermath: Aftermath) -> None:
    newest: dict[str, int] = {}
    for job in aftermath.rows.values():
        newest[job.key.name] = max(job.job_id, newest.get(job.key.name, 0))
    names = [job.key.name for job in aftermath.live.values()]
    assert len(names) == len(set(names))
    assert all(newest[job.key.name] == job_id for job_id, job in aftermath.live.items())


def test_generations_of_a_name_only_grow_and_no_worker_saw_two_at_once(
    aftermath: Aftermath,
) -> None:
    assert [wrong for worker in aftermath.workers for wrong in worker["wrong"]] == []
    # The order in which generations were made is the order of their ids.
    assert sorted(aftermath.rows) == list(range(1, len(aftermath.rows) + 1))


def test_a_reader_that_follows_the_changes_ends_up_with_what_is_in_the_log(
    aftermath: Aftermath,
) -> None:
    roamed = {job_id: job for job_id, job in aftermath.rows.items() if job.key.name != "first"}
    assert aftermath.followed == roamed


def test_eight_processes_that_claim_one_job_never_claim_it_twice(
    log: JobLog, log_url: str, crew: Crew
) -> None:
    key = add_job(log, "copy")
    before = log.jobs.get(key)
    losses = crew.all("count_up", url=log_url, name="copy", times=20)
    job = log.jobs.get(key)
    assert job.attempt == 8 * 20
    assert job.lsn == before.lsn + 8 * 20
    assert len(losses) == 8
    assert job.spec == JobSpec(type="mirror")
    assert job.create_at == NOW

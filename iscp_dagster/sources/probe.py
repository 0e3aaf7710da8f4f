"""The change probe: which tables moved, from their Delta logs alone.

It remembers for each table the newest commit it read (the *head*) and asks at the next tick only
whether the one after it is there. A *look* is the dearer way, taken at first sight and whenever
something does not fit: list the log, check the Delta id, read what is wanted. Every so often
(`CHECK_EVERY`) an unchanged table is checked more closely, in case log cleanup took the very commit
that the quick question asks for.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp_dagster.errors import IscpError, TableUnreadable, UnknownDeltaTable
from iscp_dagster.rules.model import (
    Commit,
    History,
    Probed,
    ProbeFailed,
    Table,
    TableKey,
    TableMissing,
    TableReplaced,
)
from iscp_dagster.sources.delta_log import CommitRead, DeltaLog, one_line, open_log

if TYPE_CHECKING:
    from obstore.store import ObjectStore

MAX_COMMITS_READ = 1000
"""How many commits of one table a probe reads; the rest follows at the next one."""
CHECK_EVERY = 60
"""Every how many probes an unchanged table is checked more closely."""
REQUESTS_AT_ONCE = 64
"""How many tables in object stores are asked at once."""

_Asked = dict[TableKey, Future[Probed | None]]


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A table, and the version after which its commits are wanted.

    `since` is -1 when only the newest version is: new jobs read a snapshot, not commits.
    """

    table: Table
    since: int = -1

    @staticmethod
    def of(table: Table, watermarks: Iterable[int]) -> ProbeRequest:
        """Ask for what the jobs at these versions need; new ones (-1) need no commits."""
        return ProbeRequest(table, min((v for v in watermarks if v >= 0), default=-1))


class _Gone(Exception):
    """The table has no log."""


class _Replaced(Exception):
    """The log belongs to another table."""

    def __init__(self, delta_id: str) -> None:
        super().__init__(delta_id)
        self.delta_id = delta_id


class Probe:
    """Asks many Delta logs what is new; keeps what it learned from one call to the next.

    Example:
        >>> probe = Probe()
        >>> found = probe.probe([ProbeRequest(table, since=41)])
        >>> found[table.key].head.version
        42
    """

    def __init__(
        self, *, max_commits: int = MAX_COMMITS_READ, check_every: int = CHECK_EVERY
    ) -> None:
        self._max_commits = max_commits
        self._check_every = check_every
        self._known: dict[TableKey, _Known] = {}
        self._stores: dict[str, ObjectStore] = {}
        self._unreached: frozenset[TableKey] = frozenset()

    def probe(
        self, tables: Iterable[ProbeRequest], deadline: float | None = None
    ) -> dict[TableKey, Probed]:
        """Probe each table once.

        A table without change gives the same `History` object as the last time. When more commits
        are wanted than one probe reads, `head` is the last one read, which may be below a version
        that was reported before; the next probes go on from there. `first_version` is at most
        `since + 1` unless history is lost. Only commits after `since` are kept in memory.

        Args:
            tables: one request per table.
            deadline: a `time.monotonic()` at which to stop; tables not reached are absent from the
                result, and come first next time.
        """
        requests = list(tables)
        if self._unreached:
            requests.sort(key=lambda request: request.table.key not in self._unreached)
        found: dict[TableKey, Probed] = {}
        here: list[tuple[_Known, int]] = []
        away: list[tuple[_Known, int]] = []
        for request in requests:
            try:
                known = self._remembered(request.table)
            except IscpError as error:
                found[request.table.key] = ProbeFailed(error.message)
                continue
            (away if known.log.remote else here).append((known, request.since))
        asked = self._ask_away(away, deadline)
        for known, since in here:
            _put(found, known.key, known.probe(since, deadline))
        for key, answer in _answers(asked, deadline):
            _put(found, key, answer)
        if self._unreached or len(found) < len(requests):
            keys = {request.table.key for request in requests}
            self._unreached = frozenset((self._unreached | keys) - found.keys())
        return found

    def retain(self, keys: Collection[TableKey]) -> None:
        """Forget all tables but these."""
        for key in self._known.keys() - set(keys):
            self._known.pop(key, None)
        self._unreached &= set(keys)

    def _remembered(self, table: Table) -> _Known:
        known = self._known.get(table.key)
        if known is None or known.uri != table.uri or known.delta_id != table.delta_id:
            log = open_log(table.uri, self._stores)
            known = _Known(table, log, self._max_commits, self._check_every)
            self._known[table.key] = known
        return known

    @staticmethod
    def _ask_away(tables: Sequence[tuple[_Known, int]], deadline: float | None) -> _Asked:
        if not tables:
            return {}
        pool = ThreadPoolExecutor(min(REQUESTS_AT_ONCE, len(tables)), "iscp-probe")
        asked = {known.key: pool.submit(known.probe, since, deadline) for known, since in tables}
        # The threads end with the last question; a store that hangs must not keep the caller.
        pool.shutdown(wait=False)
        return asked


def _answers(asked: _Asked, deadline: float | None) -> Iterator[tuple[TableKey, Probed | None]]:
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    wait(asked.values(), timeout=left)
    for key, answer in asked.items():
        if answer.done():
            yield key, answer.result()


def _put(found: dict[TableKey, Probed], key: TableKey, probed: Probed | None) -> None:
    if probed is not None:
        found[key] = probed


class _Known:
    """What is known of one table, and how to find out the rest."""

    __slots__ = (
        "_check_every",
        "_covered_from",
        "_history",
        "_lock",
        "_mark",
        "_max_commits",
        "_until_check",
        "delta_id",
        "key",
        "log",
        "uri",
    )

    def __init__(self, table: Table, log: DeltaLog, max_commits: int, check_every: int) -> None:
        self.key, self.uri, self.delta_id, self.log = table.key, table.uri, table.delta_id, log
        self._max_commits = max_commits
        self._check_every = check_every
        # Tables take their turns, so that no tick checks all of them.
        self._until_check = zlib.crc32(str(table.key).encode()) % check_every + 1
        self._lock = threading.Lock()
        self._history: History | None = None
        self._covered_from = 0
        self._mark: object = None

    def probe(self, since: int, deadline: float | None) -> Probed | None:
        """Find out what is after `since`; None when the time is up before it starts."""
        left = -1.0 if deadline is None else deadline - time.monotonic()
        if (deadline is not None and left <= 0) or not self._lock.acquire(timeout=left):
            return None
        try:
            return self._probe(since, deadline)
        except _Gone:
            self._history = None
            return TableMissing(f"{self.uri} has no Delta log")
        except _Replaced as error:
            self._history = None
            return TableReplaced(error.delta_id)
        except IscpError as error:
            return ProbeFailed(error.message)
        except OSError as error:
            return ProbeFailed(one_line(error))
        finally:
            self._lock.release()

    def _probe(self, since: int, deadline: float | None) -> History | None:
        history = self._history
        if history is None or -1 < since < self._covered_from - 1:
            return self._look(since, deadline)
        head = history.head.version
        self._until_check -= 1
        check = self._until_check <= 0
        if check:
            self._until_check = self._check_every
        grown = self.log.has(head + 1)
        # On local disk the head's own file is asked for each time: it tells at once when a table
        # was dropped or made anew. That would double the requests to an object store.
        if (grown or check or not self.log.remote) and self.log.mark(head) != self._mark:
            return self._look(since, deadline)
        if check and not grown and not self._complete(history):
            return self._look(since, deadline)
        if grown and since > head:
            # The jobs are further than a backlog that was being read: skip what is left of it.
            return self._look(since, deadline)
        if grown:
            new = self.log.read(head + 1, self._max_commits, deadline)
            if since < 0 and len(new) == self._max_commits:
                return self._look(since, deadline)
            if new:
                return self._extend(history.commits, new, history.first_version, since)
        return self._trim(history, since)

    def _complete(self, history: History) -> bool:
        """Whether no commit was taken from, or sits apart from, what is known."""
        if history.commits and not self.log.has(history.commits[0].version):
            return False
        return self.log.versions(history.head.version)[-1:] == [history.head.version]

    def _look(self, since: int, deadline: float | None) -> History | None:
        """List the log, check whose it is, and read it from `since` on."""
        versions = self._listed(since)
        first, newest = _unbroken(versions), versions[-1]
        self._check_id(since)
        only_head = since < 0 or since >= newest
        start = newest if only_head else max(since + 1, first)
        read = self.log.read(start, 1 if only_head else self._max_commits, deadline)
        if not read:
            if deadline is not None and time.monotonic() >= deadline:
                return None
            raise TableUnreadable(f"commit {start} went away while it was read")
        self._covered_from = newest + 1 if only_head else since + 1
        return self._extend((), read, first, since)

    def _listed(self, since: int) -> list[int]:
        near = since if since >= 0 and self.log.remote else self.log.hint()
        versions = self.log.versions(near) or self.log.versions(0)
        if versions:
            return versions
        # Nobody's jobs end for good on one listing: delta-rs has to agree.
        from iscp_dagster.sources.facts import read_delta_id

        try:
            read_delta_id(self.uri)
        except UnknownDeltaTable as error:
            raise _Gone from error
        raise TableUnreadable(f"{self.uri} has checkpoints but no commits")

    def _check_id(self, since: int) -> None:
        """Raise when the log is another table's.

        The first commit tells, as long as the commits after it are read as well; otherwise, or
        when it is gone, broken or differs (REPLACE TABLE before the table was added), delta-rs is
        asked.
        """
        if since >= 0:
            with suppress(TableUnreadable):
                first = self.log.read(0, 1, None)
                if first and first[0].delta_id == self.delta_id:
                    return
        # Late, because only a first look at a table needs it.
        from iscp_dagster.sources.facts import read_delta_id

        current = read_delta_id(self.uri)
        if current != self.delta_id:
            raise _Replaced(current)

    def _extend(
        self, commits: tuple[Commit, ...], new: Sequence[CommitRead], first: int, since: int
    ) -> History:
        for read in new:
            if read.delta_id and read.delta_id != self.delta_id:
                raise _Replaced(read.delta_id)
        head = new[-1].commit.ts
        self._mark = self.log.mark(head.version)
        return self._trim(History(head, first, commits + tuple(r.commit for r in new)), since)

    def _trim(self, history: History, since: int) -> History:
        """Let go of the commits that nobody wants any more; without any, nothing changes."""
        last_unwanted = since if since >= 0 else history.head.version
        commits = history.commits
        if commits and commits[0].version <= last_unwanted:
            kept = tuple(c for c in commits if c.version > last_unwanted)
            history = History(history.head, history.first_version, kept)
        self._covered_from = max(self._covered_from, min(last_unwanted, history.head.version) + 1)
        self._history = history
        return history


def _unbroken(versions: Sequence[int]) -> int:
    """Return the oldest version from which none is missing up to the newest."""
    first = versions[-1]
    for version in reversed(versions[:-1]):
        if version != first - 1:
            break
        first = version
    return first

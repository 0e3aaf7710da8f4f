"""Where a window may end: what a history says about a stretch of versions.

A version is a *change* when its commit changed data; OPTIMIZE, property changes and the like are
none. History is *lost* for a watermark when the version after it is gone from the table's log.
Versions that the probe did not read count as changed: better one idle run than a missed change.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime

from iscp_dagster.rules.model import TS, History


class Changes:
    """A history, ready to be asked about stretches of versions."""

    __slots__ = ("_changed", "_first", "history")

    def __init__(self, history: History) -> None:
        self.history = history
        commits = history.commits
        self._first = commits[0].version if commits else history.head.version + 1
        self._changed = [commit.version for commit in commits if commit.data_change]

    def lost(self, watermark: TS) -> bool:
        """Whether the change feed after `watermark` is gone, wholly or in part."""
        return not watermark.is_zero and watermark.version + 1 < self.history.first_version

    def first_change(self, start: TS, end: TS) -> int | None:
        """Return the first version in (start, end] that changed data, or may have."""
        if start.version + 1 < self._first:
            return start.version + 1 if start < end else None
        at = bisect_right(self._changed, start.version)
        if at < len(self._changed) and self._changed[at] <= end.version:
            return self._changed[at]
        return None

    def settled(self, start: TS, end: TS) -> int:
        """Return the last version up to `end` that an index true at `start` is true at as well."""
        change = self.first_change(start, end)
        return end.version if change is None else change - 1

    def point(self, ts: TS) -> TS:
        """Return `ts` with the commit time of its version, where that is known."""
        head, at = self.history.head, ts.version - self._first
        if ts.version == head.version:
            return head
        return self.history.commits[at].ts if 0 <= at < len(self.history.commits) else ts

    def waiting_since(self, start: TS) -> datetime:
        """Return since when the oldest change after `start` waits; `start`'s time if unread."""
        change = self.first_change(start, self.history.head)
        if change is None or change < self._first:
            return start.time
        return self.history.commits[change - self._first].time

    def cap(self, start: TS, end: TS, max_versions: int, max_bytes: int) -> TS:
        """Return the last point up to `end` that keeps (start, end] within both limits.

        A window never holds less than one version. Where the probe did not read the versions
        after `start`, the first commit that it did read is the earliest place to cut.
        """
        first = max(start.version + 1, self._first)
        if end.version < first:
            return self.point(end)
        last = max(min(end.version, start.version + max_versions), first)
        total, reached = 0, end
        for commit in self.history.commits[first - self._first : last - self._first + 1]:
            total += commit.bytes if commit.data_change else 0
            if total > max_bytes and commit.version > first:
                break
            reached = commit.ts
        return self.point(reached)

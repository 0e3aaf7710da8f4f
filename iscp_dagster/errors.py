"""Every error this package raises on purpose, with its code and its cure.

A *code* tells what happens next: 0 is success, 1-9999 is temporary (tried again by itself, with
backoff), 10000 and above is permanent (nothing happens until `iscp repair`). A *cure* is the
sentence that tells the reader what to do; the CLI prints both on one line.
"""

from __future__ import annotations

PERMANENT_FROM = 10_000


class IscpError(Exception):
    """Base of all errors of this package; prints as one line with its cure."""

    code: int = 1
    cure: str = ""

    def __init__(self, message: str, *, cure: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if cure is not None:
            self.cure = cure

    def __str__(self) -> str:
        text = f"{self.message}; {self.cure}" if self.cure else self.message
        return " ".join(text.split())

    @property
    def permanent(self) -> bool:
        """Whether a retry can't help."""
        return self.code >= PERMANENT_FROM


class TemporaryError(IscpError):
    """Tried again by itself, with backoff."""

    code = 1


class PermanentError(IscpError):
    """Stays until somebody repairs the cause and says `iscp repair`."""

    code = PERMANENT_FROM


class UsageError(IscpError):
    """The caller's input is wrong: nothing was written. The CLI exits with 2."""

    code = 10_001


class UnknownTable(UsageError):
    """No such table in the log."""

    code = 10_002
    cure = "`iscp table list` shows the tables, `iscp table add` records one"


class UnknownJob(UsageError):
    """No such live job in the log."""

    code = 10_003
    cure = "`iscp jobs` shows the jobs, `iscp register` adds one"


class LogSchemaTooNew(PermanentError):
    """The log was written by a newer version of this package."""

    code = 10_010
    cure = "upgrade iscp_dagster; nothing was touched"


class LogUnavailable(TemporaryError):
    """The log's database does not answer."""

    code = 10


class ClaimLost(TemporaryError):
    """A compare-and-set write matched no row: somebody else moved the job."""

    code = 11
    cure = "nothing was written; the next tick starts from the job's new state"


class SparkUnavailable(TemporaryError):
    """No Spark session can be had."""

    code = 20


class JavaNotFound(PermanentError):
    """Neither the machine nor the environment has a Java that Spark 4 runs on."""

    code = 10_020
    cure = "install Java 17 or 21, or `pip install 'iscp_dagster[local]'`"


class DeltaJarsMissing(PermanentError):
    """Spark has no Delta classes."""

    code = 10_022
    cure = (
        "`pip install 'iscp_dagster[local]'`, or set ISCP_SPARK_PACKAGES to the cluster's Delta "
        "coordinates"
    )


class TableUnreadable(TemporaryError):
    """A source table's Delta log can't be read right now."""

    code = 30


class UnknownDeltaTable(UsageError):
    """There is no Delta table at the uri."""

    code = 10_004
    cure = "check the uri; a Delta table is a folder with a _delta_log in it"


class RunLost(TemporaryError):
    """A run ended without a word: killed, or its machine is gone."""

    code = 12


class SourceTableMissing(PermanentError):
    """The table a job indexes has no Delta log any more."""

    code = 10_030
    cure = "`iscp unregister` the job, or restore the table and `iscp repair` the job"


class SourceTableReplaced(PermanentError):
    """Another Delta table lives where the one a job indexes used to be."""

    code = 10_031
    cure = "`iscp unregister` the job, drop and add the table again, then register the job anew"


class WindowUnavailable(TemporaryError):
    """The version a window ends at can't be read from the table (any more)."""

    code = 31
    cure = "the next tick plans a window that ends at the table's newest version"


class HistoryLost(TemporaryError):
    """The changes of a window are gone (VACUUM, log retention, feed off): a snapshot is needed.

    An iteration never ends with it: it reads the table at the window's end instead.
    """

    code = 32


class IndexContended(TemporaryError):
    """Another writer committed to the index meanwhile; this one wrote nothing that counts."""

    code = 33
    cure = "nothing is lost: the next attempt starts from where the index stands"


class TableContended(TemporaryError):
    """Other writers committed to the table each time a load tried to."""

    code = 34
    cure = "nothing was loaded; try again when the table is quieter"


class LoadFailed(TemporaryError):
    """Spark gave up a load for a reason of its own; nothing was written."""

    code = 35


class IndexBehindWindow(PermanentError):
    """The window starts at another point than the index stands at."""

    code = 10_021
    cure = "run `iscp sync`, or materialize the windows in between first"


class SourceColumnChanged(PermanentError):
    """A column that an index uses was dropped, renamed or got another type."""

    code = 10_033
    cure = "change the column back and `iscp repair` the job, or register the index anew"


class BuildMismatch(PermanentError):
    """What stands at the index's place was built for another job or from another spec."""

    code = 10_034
    cure = "`iscp unregister` the job and register it anew"


class ConsumerTimeout(TemporaryError):
    """A consumer took longer for its window than its spec allows; it was stopped."""

    code = 40
    cure = "`iscp alter --timeout` gives it more time, `--max-window-versions` less to do"


class WindowRefused(UsageError):
    """The window does not fit where the index stands; nothing was written."""

    code = 10_040


class JobBusy(TemporaryError):
    """Another run that is alive holds the job."""

    code = 41
    cure = "wait until it ends, or cancel it"


class JobInError(PermanentError):
    """The job stopped at a permanent error that nobody has repaired yet."""

    code = 10_041
    cure = "mend the cause, then `iscp repair`"


class ServiceDied(TemporaryError):
    """One of the services that `iscp dev` runs ended by itself."""

    code = 50


class IndexMissing(UsageError):
    """There is no index at the place, or not that version of it."""

    code = 10_050
    cure = "`iscp jobs` shows which indexes there are"


class IndexBuilding(TemporaryError):
    """The index has never been synced: it can't answer yet."""

    code = 51
    cure = "wait until its first sync is done; `iscp jobs` shows how far it is"


class RowsRefused(PermanentError):
    """Rows of a window don't fit the index, and its spec says to stop at such rows."""

    code = 10_051
    cure = "mend the rows and `iscp repair` the job, or register it with on_bad_row=skip"


class EmbedderMissing(UsageError):
    """No embedder of that name is installed."""

    code = 10_052


class IndexDropped(UsageError):
    """The index was unregistered; its files go with the next collection."""

    code = 10_053
    cure = "`iscp register` builds it anew"


class TailUnavailable(TemporaryError):
    """The changes that an index does not hold yet can't be read."""

    code = 52
    cure = "search without fresh, or wait for the next sync"


class IndexUnreadable(TemporaryError):
    """The files of an index can't be read right now."""

    code = 53
    cure = "try again; if it stays so, `iscp unregister` the job and register it anew"


class NoCommonVersion(TemporaryError):
    """Indexes that are asked together stand at different points of their table's history."""

    code = 54
    cure = "search with fresh, or `iscp sync` first"


class IterationCanceled(BaseException):
    """Somebody ended the iteration: no failure. Not an `Exception`, so that none swallows it."""

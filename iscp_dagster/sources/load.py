"""Transactional load: files into a table in one commit, or not at all.

Rows are deduplicated on the key twice: within the *batch* (what the files hold), and against the
table, in one MERGE. Two loads at once never leave a key twice: Delta lets a MERGE commit only if no
rows came in since it looked, and the one that lost starts again from the table's new version.

A *load id* names a load. It is recorded in the load's own commit, as the transaction id
`iscp-load:<load id>`: repeating the load finds it there and changes nothing, no matter which of
commit and answer a crash came between.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from iscp_dagster.errors import (
    LoadFailed,
    SourceTableMissing,
    SourceTableReplaced,
    TableContended,
    TableUnreadable,
    UsageError,
)
from iscp_dagster.joblog import JobLog
from iscp_dagster.rules.model import DEFAULT_ACCOUNT, Table, TableKey, check_name
from iscp_dagster.settings import Settings
from iscp_dagster.sources.batch import Batch, Target, read_batch, shown_key
from iscp_dagster.sources.delta_log import one_line as delta_line
from iscp_dagster.sources.load_merge import (
    SOURCE,
    OnDuplicate,
    known_key_statement,
    merge_statement,
)
from iscp_dagster.sources.load_paths import choose_files
from iscp_dagster.sources.storage import local_path, provider_of, storage_options_from_env
from iscp_dagster.spark.session import get_spark
from iscp_dagster.spark.sql import (
    has_condition,
    one_line,
    own_session,
    release_session,
    spark_errors,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS = 10
"""How often a load starts again because another writer was faster."""

_CONFLICTS = (
    "DELTA_CONCURRENT_TRANSACTION",
    "DELTA_CONCURRENT_APPEND",
    "DELTA_CONCURRENT_DELETE_READ",
    "DELTA_CONCURRENT_DELETE_DELETE",
    "DELTA_CONCURRENT_WRITE",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
    "USER_RAISED_EXCEPTION",
)
# What a table itself may have against a row.
_REFUSALS = (
    "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES",
    "DELTA_NOT_NULL_CONSTRAINT_VIOLATED",
    "DELTA_EXCEED_CHAR_VARCHAR_LIMIT",
    "EXCEED_LIMIT_LENGTH",
    "DELTA_IDENTITY_COLUMNS_EXPLICIT_INSERT_NOT_SUPPORTED",
    "DELTA_IDENTITY_COLUMNS_UPDATE_NOT_SUPPORTED",
)
# The metadata of a column that the table fills by itself.
_AUTOMATIC = ("delta.generationExpression", "delta.identity.start", "CURRENT_DEFAULT")
_KEEP = {OnDuplicate.SKIP: "first", OnDuplicate.REPLACE: "last", OnDuplicate.ERROR: "only"}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did."""

    table: str
    load_id: str | None
    rows_read: int
    inserted: int
    replaced: int
    skipped: int
    version: int
    """The table's version that the load made, or found when it changed nothing."""
    already_loaded: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the report for machines."""
        return asdict(self)

    def __str__(self) -> str:
        if self.already_loaded:
            return f"{self.table}: load {self.load_id} is there already, nothing changed"
        return (
            f"{self.table}: {self.rows_read} rows read, {self.inserted} inserted, "
            f"{self.replaced} replaced, {self.skipped} skipped, now at v{self.version}"
        )


@dataclass(frozen=True, slots=True)
class _Look:
    """The table as delta-rs sees it now."""

    version: int
    loaded: bool
    automatic: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Load:
    """One load on its way."""

    table: Table
    on_duplicate: OnDuplicate
    load_id: str | None

    @property
    def app_id(self) -> str:
        """The name that the load's transaction goes by."""
        return f"iscp-load:{self.load_id}"

    def report(self, version: int, rows_read: int, inserted: int, replaced: int) -> LoadReport:
        skipped = rows_read - inserted - replaced
        name = str(self.table.key)
        return LoadReport(name, self.load_id, rows_read, inserted, replaced, skipped, version)

    def nothing(self, version: int) -> LoadReport:
        return LoadReport(str(self.table.key), self.load_id, 0, 0, 0, 0, version, True)


def load_files(
    name: str,
    files: Sequence[str],
    *,
    file_format: str | None = None,
    on_duplicate: str = OnDuplicate.ERROR,
    load_id: str | None = None,
    account: str = DEFAULT_ACCOUNT,
    settings: Settings | None = None,
) -> LoadReport:
    """Load files into a recorded table, in one commit.

    Args:
        name: The table, `DB.TABLE`.
        files: Paths or uris of files; order matters where a key is there twice.
        file_format: `parquet`, `csv` or `json`; default by the files' ending.
        on_duplicate: `skip`, `replace` or `error`.
        load_id: The load's name; a load of that name happens once. Without it, each call is a load
            of its own.
        account: Who owns the table.
        settings: Instead of the environment's.

    Raises:
        UsageError: The files, their rows or a duplicate key are refused; nothing was written.
        SourceTableReplaced: It is not the Delta table that was recorded.
        TableContended: Other writers were faster, too many times.
    """
    settings = settings or Settings.from_env()
    key = TableKey.parse(name, account)
    if load_id is not None:
        check_name("load-id", load_id)
    with JobLog.open(settings) as log:
        load = _Load(log.tables.get(key), _mode(on_duplicate), load_id)
    # Before the files are looked at: whoever repeats a load may have moved them away.
    seen = _look(load)
    if seen.loaded:
        return load.nothing(seen.version)
    paths, chosen = choose_files(files, file_format)
    with _session(settings, load) as session:
        target = _target(session, load.table, seen)
        with read_batch(session, paths, chosen, target, _KEEP[load.on_duplicate]) as batch:
            return _commit(session, load, target, batch)


def _mode(text: str) -> OnDuplicate:
    try:
        return OnDuplicate(text)
    except ValueError:
        raise UsageError(
            f"on-duplicate: {text!r} is not known", cure="it is skip, replace or error"
        ) from None


def _look(load: _Load) -> _Look:
    """Ask the table, without Spark, whether it is still the same and has the load already."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    table = load.table
    where = str(local_path(table.uri)) if provider_of(table.uri) == "local" else table.uri
    try:
        delta = DeltaTable(where, storage_options=storage_options_from_env(table.uri) or None)
        delta_id = str(delta.metadata().id)
        fields = json.loads(delta.schema().to_json())["fields"]
        loaded = load.load_id is not None and delta.transaction_version(load.app_id) is not None
    except TableNotFoundError as error:
        raise SourceTableMissing(
            f"{table.key}: {table.uri} is no Delta table any more",
            cure="`iscp table drop` it, or restore it",
        ) from error
    except (DeltaError, OSError, ValueError) as error:
        raise TableUnreadable(f"{table.key}: {table.uri}: {delta_line(error)}") from error
    if delta_id != table.delta_id:
        raise SourceTableReplaced(
            f"{table.key}: another Delta table is at {table.uri} now",
            cure="`iscp table drop` and `iscp table add` it again",
        )
    automatic = (f["name"] for f in fields if any(name in f["metadata"] for name in _AUTOMATIC))
    return _Look(delta.version(), loaded, frozenset(automatic))


@contextmanager
def _session(settings: Settings, load: _Load) -> Iterator[SparkSession]:
    """A session whose next commit carries the load's name."""
    session = own_session(get_spark(settings))
    session.conf.set("spark.sql.ansi.enabled", "true")
    mark = {"iscp_load": load.load_id, "on_duplicate": str(load.on_duplicate)}
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", json.dumps(mark))
    if load.load_id is not None:
        session.conf.set("spark.databricks.delta.write.txnAppId", load.app_id)
        session.conf.set("spark.databricks.delta.write.txnVersion", "1")
    try:
        yield session
    finally:
        release_session(session)


def _target(session: SparkSession, table: Table, seen: _Look) -> Target:
    try:
        schema = session.read.format("delta").load(table.uri).schema
    except spark_errors() as error:
        raise TableUnreadable(f"{table.key}: {one_line(error)}") from error
    spelled = {name.lower(): name for name in schema.names}
    for name in table.pk:
        if name.lower() not in spelled:
            raise UsageError(
                f"{table.key} has no column {name!r} any more, which is of its key",
                cure="`iscp table drop` and `iscp table add` it again",
            )
    key = tuple(spelled[name.lower()] for name in table.pk)
    return Target(str(table.key), tuple(schema.fields), key, seen.automatic)


def _commit(session: SparkSession, load: _Load, target: Target, batch: Batch) -> LoadReport:
    """Merge the batch into the table; begin again where another writer was faster."""
    batch.rows.createOrReplaceTempView(SOURCE)
    statement = merge_statement(load.table.uri, target, batch.columns, load.on_duplicate)
    reason = ""
    for _ in range(ATTEMPTS):
        seen = _look(load)
        if seen.loaded:
            return load.nothing(seen.version)
        try:
            if load.on_duplicate is OnDuplicate.ERROR:
                _refuse_known_key(session, load, target)
            done = session.sql(statement).collect()
        except spark_errors() as error:
            if not has_condition(error, _CONFLICTS):
                raise _explained(error, load) from error
            reason = one_line(error)
            continue
        if not done:  # Delta knew the transaction: the same load was faster elsewhere
            return load.nothing(_look(load).version)
        version = session.conf.get("spark.databricks.delta.lastCommitVersionInSession", None)
        return load.report(
            _look(load).version if version is None else int(version),
            batch.rows_read,
            done[0]["num_inserted_rows"],
            done[0]["num_updated_rows"],
        )
    raise TableContended(f"{load.table.key}: other writers were faster {ATTEMPTS} times ({reason})")


def _refuse_known_key(session: SparkSession, load: _Load, target: Target) -> None:
    """Name a key that the table has already."""
    known = session.sql(known_key_statement(load.table.uri, target))
    found = known.select(shown_key(target.key)).collect()
    if found:
        raise UsageError(
            f"{load.table.key} has key {found[0][0]} already",
            cure="say --on-duplicate skip or replace; nothing was loaded",
        )


def _explained(error: Exception, load: _Load) -> UsageError | LoadFailed:
    text = f"{load.table.key}: nothing was loaded: {one_line(error)}"
    return UsageError(text) if has_condition(error, _REFUSALS) else LoadFailed(text)

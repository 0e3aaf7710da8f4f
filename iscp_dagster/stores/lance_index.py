"""A Lance dataset as an index: a window and its watermark in one commit.

Rows are keyed by `_pk`, the canonical text of the table's key. One more row, the *control row*,
holds the generation, the watermark, a sequence number and what the index is built from. It lives in
a fragment of its own and is written anew by **every** commit of a window: two writers that start
from the same control row touch the same fragment, and Lance lets only one of them commit. So a
window is applied whole or not at all, a replay finds the watermark moved, and a late writer loses.

Rows are *staged* first: written to files that no version of the dataset names yet, on the driver
or in Spark tasks. Staged rows that are never committed are rubbish, which cleanup takes away.

Lance does not force files to local disk before it commits. A power cut may lose or damage an index;
it loses nothing else, since an index can be built anew from its table at any time.

Lance keeps threads that don't survive a fork, so it is imported late.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iscp_dagster.errors import BuildMismatch, IndexContended
from iscp_dagster.rules.model import TS, Window
from iscp_dagster.sources.storage import local_path, open_store, provider_of
from iscp_dagster.stores.lance_control import (
    CONTROL,
    CONTROL_KEY,
    KEY,
    LanceStanding,
    control_row,
    read_control,
)
from iscp_dagster.stores.lance_open import dataset_uri, open_dataset, storage_options

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata

    from iscp_dagster.stores.lance_search import LanceReader

ROWS_PER_FRAGMENT = 1024 * 1024
SCAN_KEYS_FROM = 10_000
"""With so many keys, a scan of all keys beats looking each one up in an index of keys."""
_TRIES = 8


@dataclass(frozen=True, slots=True)
class Staged:
    """What a window brings: rows already written to files, and the keys it touches."""

    fragments: tuple[str, ...] = ()
    """The metadata of the files' fragments, as JSON."""
    touched: tuple[str, ...] = ()
    """Keys whose old rows have to go: those of the staged rows, and those that are deleted."""
    whole: bool = False
    """The rows are the whole content: whatever is there now goes."""


@dataclass(frozen=True, slots=True)
class LanceIndex:
    """One generation of a Lance index."""

    uri: str
    job_id: int

    @staticmethod
    def open(uri: str, version: int | None = None) -> LanceReader:
        """Open an index for reading, pinned to one version; the newest by default.

        Raises:
            IndexMissing: There is no index, or no such version.
            IndexBuilding: The index has never been synced: it can't answer yet.
        """
        from iscp_dagster.stores.lance_search import LanceReader

        return LanceReader.open(uri, version)

    def standing(self) -> LanceStanding | None:
        """Ask the store where the index stands; None when there is no index.

        Raises:
            BuildMismatch: What stands there is no index of this generation.
        """
        dataset = open_dataset(self.uri)
        return None if dataset is None else self.standing_of(dataset)

    def standing_of(self, dataset: LanceDataset) -> LanceStanding:
        """Read a dataset's control row; one of another generation is refused."""
        found = read_control(dataset)
        if found is None or found.generation != self.job_id:
            raise BuildMismatch(f"{self.uri} holds no index of generation {self.job_id}")
        return found

    def create(self, payload: pa.Schema, build: Mapping[str, Any]) -> LanceStanding:
        """Make an empty index, unless somebody else just did; return what is there.

        Args:
            payload: The columns beside `_pk` and `_ctl`, all of them nullable.
            build: What the index is built from; recorded for good.
        """
        import lance
        import pyarrow as pa

        schema = pa.schema([(KEY, pa.string()), (CONTROL, pa.string()), *payload])
        first = LanceStanding(0, TS.zero(), self.job_id, dict(build), 0, 0)
        rows = pa.Table.from_pylist([control_row(first)], schema=schema)
        try:
            lance.write_dataset(
                rows,
                dataset_uri(self.uri),
                mode="create",
                storage_options=storage_options(self.uri),
            )
        except OSError as error:
            if "already exists" not in str(error) and not is_conflict(error):
                raise
        found = self.standing()
        if found is None:
            raise BuildMismatch(f"there is no index at {self.uri}")
        return found

    def add_column(self, field: pa.Field) -> None:
        """Add a column of NULLs, unless it is there; nothing is written but its name.

        Raises:
            IndexContended: Another writer moved the index meanwhile.
        """
        import pyarrow as pa

        dataset = open_dataset(self.uri)
        if dataset is None or field.name in dataset.schema.names:
            return
        try:
            dataset.add_columns(pa.schema([field]))
        except OSError as error:
            if not is_conflict(error):
                raise
            raise IndexContended(f"{self.uri}: another writer was faster") from error

    def stage(self, rows: pa.Table) -> tuple[str, ...]:
        """Write rows to files of their own; return the fragments to commit."""
        if rows.num_rows == 0:
            return ()
        return stage_batches(self.uri, rows.schema, rows.to_batches(), storage_options(self.uri))

    def commit(self, since: LanceStanding, window: Window, staged: Staged) -> LanceStanding:
        """Apply a window and move the watermark, in one commit.

        Compaction and index segments may come in between; another window may not.

        Args:
            since: Where the index stood when the window's rows were read.
            window: Its end becomes the watermark.
            staged: The rows, and the keys they touch.

        Raises:
            IndexContended: Another writer moved the control row since then.
        """
        for _ in range(_TRIES):
            dataset = open_dataset(self.uri)
            now = None if dataset is None else self.standing_of(dataset)
            if dataset is None or now is None or now.sequence != since.sequence:
                break
            after = replace(now, watermark=window.end, sequence=now.sequence + 1)
            try:
                return self.standing_of(commit_once(dataset, staged, after))
            except OSError as error:
                if not is_conflict(error):
                    raise
        raise IndexContended(f"{self.uri}: another writer moved the index since it was read")

    def drop(self) -> None:
        """Remove the index's files; nothing to remove is fine."""
        if provider_of(self.uri) == "local":
            path = local_path(self.uri)
            if path.exists():
                shutil.rmtree(path)
            return
        store = open_store(self.uri)
        for batch in store.list():
            store.delete([entry["path"] for entry in batch])


def control_fragment(dataset: LanceDataset) -> int | None:
    """Return the id of the fragment that is the control row, for those who rewrite fragments."""
    for one in dataset.get_fragments():
        if one.metadata.physical_rows == 1 and one.count_rows(f"{CONTROL} IS NOT NULL"):
            return one.fragment_id
    return None


def stage_batches(
    uri: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    options: Mapping[str, str] | None,
) -> tuple[str, ...]:
    """Write batches to files of their own, in this process; return the fragments as JSON."""
    import pyarrow as pa
    from lance.fragment import write_fragments

    written = write_fragments(
        pa.RecordBatchReader.from_batches(schema, iter(batches)),
        dataset_uri(uri),
        mode="append",
        max_rows_per_file=ROWS_PER_FRAGMENT,
        storage_options=dict(options) if options else None,
    )
    return tuple(json.dumps(one.to_json()) for one in written)


def commit_once(
    dataset: LanceDataset,
    staged: Staged,
    after: LanceStanding,
    options: Mapping[str, str] | None = None,
) -> LanceDataset:
    """Commit against one version; whoever touched the same fragments since makes it fail.

    Args:
        dataset: The version.
        staged: What comes and goes.
        after: What the control row says then.
        options: Storage options, where the dataset's uri does not tell them.
    """
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata

    settings = dict(options) if options else storage_options(dataset.uri)
    row = pa.Table.from_pylist([control_row(after)], schema=dataset.schema)
    control = stage_batches(dataset.uri, row.schema, row.to_batches(), settings)
    if staged.whole:
        removed: Sequence[int] = [one.fragment_id for one in dataset.get_fragments()]
        updated: Sequence[FragmentMetadata] = []
    else:
        removed, updated = _without_keys(dataset, [*staged.touched, CONTROL_KEY])
    operation = lance.LanceOperation.Update(
        removed_fragment_ids=list(removed),
        updated_fragments=list(updated),
        new_fragments=[FragmentMetadata.from_json(one) for one in (*staged.fragments, *control)],
    )
    return lance.LanceDataset.commit(
        dataset,
        operation,
        read_version=dataset.version,
        storage_options=settings,
        max_retries=0,
    )


def _without_keys(
    dataset: LanceDataset, keys: Sequence[str]
) -> tuple[Sequence[int], Sequence[FragmentMetadata]]:
    """Mark the rows of these keys deleted, without committing it."""
    import pyarrow as pa

    source = pa.table({KEY: pa.array(dict.fromkeys(keys), pa.string())})
    merge = dataset.merge_insert(KEY).when_matched_delete()
    deletion, _ = merge.use_index(len(keys) < SCAN_KEYS_FROM).execute_uncommitted(source)
    operation: Any = deletion.operation
    return operation.removed_fragment_ids, operation.updated_fragments


def is_conflict(error: OSError) -> bool:
    """Whether a commit failed only because another one came first."""
    from lance.commit import CommitConflictError

    # Commits of indexes and of compaction say so in their text alone.
    return isinstance(error, CommitConflictError) or "concurrent transaction" in str(error)

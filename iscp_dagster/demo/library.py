"""The demo's table and its indexes: made anew, changed in a batch, or a little all the time.

The *batch* is what happens between the demo's two syncs: a tenth of the rows is edited, a fiftieth
deleted, and a module that no Python has is added.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp_dagster import api
from iscp_dagster.demo.corpus import Doc, standard_library
from iscp_dagster.joblog import JobLog
from iscp_dagster.orchestration.webserver import ask_for_reload
from iscp_dagster.rules.model import TableKey
from iscp_dagster.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake.table import TableMerger

TABLE = "demo.stdlib"
EMBEDDER = "wordllama"
JOBS: dict[str, dict[str, Any]] = {
    "words": {
        "type": "fulltext",
        "columns": ["doc"],
        "options": {"include": "module,kind"},
        "description": "Finds documentation by its words, the best match first.",
    },
    "meaning": {
        "type": "vector",
        "columns": ["doc"],
        "options": {"embedder": EMBEDDER, "metric": "cosine", "include": "module,kind"},
        "description": "Finds documentation by what it means, whatever its words.",
    },
    "by_module": {
        "type": "lookup",
        "columns": ["module", "kind", "signature"],
        "options": {"by": "module"},
        "description": "Finds what a module holds without reading the whole table.",
    },
    "per_module": {
        "type": "aggregate",
        "options": {"group_by": "module", "measures": "count,sum:doc_chars,max:doc_chars"},
        "description": "How much each module documents.",
    },
}
NEW_MODULE = "teahouse"
DELETED = "random.shuffle"
_NEW = {
    "brew": "Brew a cup of tea and return it while it is hot.",
    "steep": "Let the leaves steep for a number of minutes.",
    "samovar": "Return the samovar; there is only one, and it is always on.",
    "pour": "Pour tea from the samovar into as many cups as there are guests.",
    "sweeten": "Stir a spoonful of sugar into a cup.",
    "menu": "List the teas: oolong, darjeeling, assam and whatever the day brings.",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes to the table, each kind in a commit of its own."""

    edited: tuple[Doc, ...]
    deleted: tuple[Doc, ...]
    added: tuple[Doc, ...]

    @staticmethod
    def of(docs: Sequence[Doc]) -> Batch:
        """Choose the changes: the same ones for the same rows."""
        module = DELETED.partition(".")[0]
        deleted = [doc for doc in docs[5::50] if doc.module != module]
        return Batch(
            edited=tuple(replace(doc, doc=f"{doc.doc}\n\nRead again.") for doc in docs[::10]),
            deleted=(*deleted, *(doc for doc in docs if doc.name == DELETED)),
            added=tuple(
                Doc(f"{NEW_MODULE}.{name}", NEW_MODULE, "function", "()", text)
                for name, text in _NEW.items()
            ),
        )

    def __len__(self) -> int:
        return len(self.edited) + len(self.deleted) + len(self.added)

    def versions_of(self, docs: Sequence[Doc]) -> list[list[Doc]]:
        """Return the table's rows at each of its versions, the one before the batch first."""
        first = {doc.name: doc for doc in docs}
        edited = {**first, **{doc.name: doc for doc in self.edited}}
        gone = {doc.name for doc in self.deleted}
        deleted = {name: doc for name, doc in edited.items() if name not in gone}
        added = {**deleted, **{doc.name: doc for doc in self.added}}
        return [list(rows.values()) for rows in (first, edited, deleted, added)]

    def commit_to(self, uri: Path) -> None:
        """Change the table."""
        from deltalake import write_deltalake

        _merge(uri, self.edited).when_matched_update_all().execute()
        _merge(uri, self.deleted).when_matched_delete().execute()
        write_deltalake(str(uri), _rows_of(self.added), mode="append")


def demo_table_uri(settings: Settings) -> Path:
    """Return where the demo's table is."""
    return settings.home / "demo" / "stdlib"


def is_made(settings: Settings) -> bool:
    """Whether the demo's table is there and has its indexes."""
    jobs = {job.key.name for job in api.get_jobs(table=TABLE)}
    return jobs >= JOBS.keys() and (demo_table_uri(settings) / "_delta_log").is_dir()


def make_demo(settings: Settings) -> list[Doc]:
    """Make the demo's table anew and register its indexes; returns the table's rows."""
    from iscp_dagster.embedders.registry import get_embedder

    # What the vectors need may not be installed: said before anything is written.
    get_embedder(EMBEDDER)
    uri = demo_table_uri(settings)
    docs = standard_library()
    _start_over(settings, uri)
    _write(uri, docs)
    api.add_table(TABLE, uri=str(uri), pk=["name"])
    for name, spec in JOBS.items():
        api.register_job(TABLE, name, spec)
    ask_for_reload(settings)
    return docs


def put(uri: Path, docs: Sequence[Doc]) -> None:
    """Write rows over those of the same name, or as new ones, in one commit."""
    _merge(uri, docs).when_matched_update_all().when_not_matched_insert_all().execute()


def _start_over(settings: Settings, uri: Path) -> None:
    with JobLog.open(settings) as log:
        for job in log.jobs.list(table=TableKey.parse(TABLE)):
            api.unregister_job(TABLE, job.key.name, log=log)
        api.drop_table(TABLE, log=log)
    shutil.rmtree(uri, ignore_errors=True)


def _write(uri: Path, docs: Sequence[Doc]) -> None:
    from deltalake import write_deltalake

    uri.parent.mkdir(parents=True, exist_ok=True)
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(str(uri), _rows_of(docs), configuration=feed)


def _rows_of(docs: Sequence[Doc]) -> pa.Table:
    import pyarrow as pa

    texts = ("name", "module", "kind", "signature", "doc")
    fields = [*((name, pa.string()) for name in texts), ("doc_chars", pa.int64())]
    return pa.Table.from_pylist(
        [{**asdict(doc), "doc_chars": len(doc.doc)} for doc in docs], schema=pa.schema(fields)
    )


def _merge(uri: Path, docs: Sequence[Doc]) -> TableMerger:
    from deltalake import DeltaTable

    return DeltaTable(str(uri)).merge(
        _rows_of(docs), predicate="old.name = new.name", source_alias="new", target_alias="old"
    )

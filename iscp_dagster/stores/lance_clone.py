"""A copy of a Lance index that is one's own to change, in a local folder.

A *clone* names the files of the index that it was made from, its *origin*, and copies none: only
what is added to it is written, into its own folder. The origin may be in an object store; nothing
is ever written there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp_dagster.sources.storage import provider_of
from iscp_dagster.stores.lance_open import reading_session, storage_options
from iscp_dagster.stores.lance_segments import Recipe, TextRecipe, read_recipes

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.dataset import Index
    from lance.fragment import FragmentMetadata

    from iscp_dagster.stores.lance_search import LanceReader

_ORIGIN = 1
"""The number under which a clone knows the folder of its origin."""


def make_clone(reader: LanceReader, folder: Path) -> LanceDataset:
    """Make a clone of an index at the version that a reader is pinned to.

    Args:
        reader: The origin.
        folder: Where the clone goes; must not be there yet.
    """
    import lance

    origin = reader.dataset
    options = clone_options(reader)
    if provider_of(origin.uri) == "local":
        origin.shallow_clone(folder, reader.version)
    else:
        # Lance would write its own clone into the origin's store.
        _assemble(origin, folder, read_recipes(reader.build["recipes"]), options)
    return lance.dataset(folder, storage_options=options, session=reading_session())


def clone_options(reader: LanceReader) -> dict[str, str] | None:
    """Return the storage options that a reader's clone needs: those of its origin."""
    return storage_options(reader.dataset.uri)


def _assemble(
    origin: LanceDataset,
    folder: Path,
    recipes: Sequence[Recipe],
    options: dict[str, str] | None,
) -> None:
    """Make a clone out of the origin's fragments and segments."""
    import lance

    base = lance.DatasetBasePath(origin.uri, is_dataset_root=True, id=_ORIGIN)
    schema: Any = origin.lance_schema
    clone = lance.LanceDataset.commit(
        folder, lance.LanceOperation.Overwrite(schema, [], [base]), storage_options=options
    )
    samples = _samples(clone, recipes)
    segments = _segments(origin, {name: one.index_details for name, one in samples.items()})
    steps: list[Any] = [
        lance.LanceOperation.Merge(_fragments(origin), schema),
        lance.LanceOperation.CreateIndex(segments, list(samples.values())),
    ]
    for step in steps:
        clone = lance.LanceDataset.commit(
            clone, step, read_version=clone.version, storage_options=options
        )


def _fragments(origin: LanceDataset) -> list[FragmentMetadata]:
    """Return the origin's fragments, with the folder that their files are in."""
    from lance.fragment import FragmentMetadata

    found: list[FragmentMetadata] = []
    for fragment in origin.get_fragments():
        written = fragment.metadata.to_json()
        for file in (*written["files"], written["deletion_file"]):
            if file is not None:
                file["base_id"] = _ORIGIN
        found.append(FragmentMetadata.from_json(json.dumps(written)))
    return found


def _samples(clone: LanceDataset, recipes: Sequence[Recipe]) -> Mapping[str, Index]:
    """Build each text index over nothing: only what it builds itself does Lance describe in full.

    Segments whose descriptions differ can't be searched together.
    """
    built: dict[str, Index] = {}
    for recipe in recipes:
        if isinstance(recipe, TextRecipe):
            recipe.ready()
            recipe.build(clone)
            done: Any = clone.get_transactions(1)[0]
            (built[recipe.name],) = done.operation.new_indices
    return built


def _segments(origin: LanceDataset, described: Mapping[str, Any]) -> list[Index]:
    """Return the origin's segments, with the folder that their files are in."""
    from lance.dataset import Index

    return [
        Index(
            uuid=segment.uuid,
            name=one.name,
            fields=list(one.fields),
            dataset_version=segment.dataset_version_at_last_update,
            fragment_ids=segment.fragment_ids,
            index_version=segment.index_version,
            created_at=segment.created_at,
            base_id=_ORIGIN,
            # The others carry their own descriptions in their files.
            index_details=described.get(one.name, (one.type_url, b"")),
        )
        for one in origin.describe_indices()
        for segment in one.segments
    ]

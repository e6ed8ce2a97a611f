"""Archives in buckets that a node reads by what the machine of the run has made of them.

That is an index of shards, the encoding of an archive's names, or a tar that was decompressed. The
first two are small and sent to the node, which reads what they name from the bucket by ranges; a
compressed tar it downloads and decompresses itself, once, into its cache. All of it has to be in
the state in which the machine of the run has read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from patchline.pipeline.errors import StorageError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace import cache, remote_data
from patchline.pipeline.workspace.files.archives import (
    INDEX_SUFFIX,
    NAMED_SUFFIX,
    archives_of,
    origin_of,
    readable_archive,
)
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.placeholders import FOLDER
from patchline.pipeline.workspace.files.workspace_folder import place
from patchline.pipeline.workspace.remote_data import KeptState


class BucketArchive(FrozenModel):
    """An uncompressed archive: an object, or what a compressed one holds."""

    file: str
    """Where it is read."""
    object: str
    """Where the object is downloaded, or a placeholder stands for it; the same if it is read."""
    bytes: int
    """Of the object."""
    e_tag: str


class MadeArchive(FrozenModel):
    """An archive that was made of objects in buckets; paths are absolute, in the workspace."""

    file: str
    content: dict[str, Any]
    """What the file holds, as JSON: an index of shards, or the encoding of an archive's names;
    empty for a tar that was decompressed."""
    archives: tuple[BucketArchive, ...]
    """What it consists of; of a tar that was decompressed, itself."""


def made_archive(root: Path) -> MadeArchive | None:
    """Return how a node can make what a root is, or is a folder in.

    Args:
        root: an archive in the workspace that is no object itself, absolute.

    Returns:
        None if it was not made of objects in buckets alone, or one of them has changed here.
    """
    file = remote_data.archive_or_folder(root)
    if not file.is_file() or not file.is_relative_to(place()):
        return None
    content: dict[str, Any] = {}
    if file.suffix in (INDEX_SUFFIX, NAMED_SUFFIX):
        content = json.loads(file.read_text(encoding="utf-8"))
    archives = [Path(content["archive"])] if "archive" in content else archives_of(file)
    inside = f"{place() / FOLDER}{os.sep}"
    objects = {
        each: each if str(each).startswith(inside) else origin_of(each) or each for each in archives
    }
    states = remote_data.kept_states(objects.values())
    if not states.keys() >= set(objects.values()):
        return None
    parts = tuple(
        BucketArchive(file=str(archive), object=str(each), **states[each]._asdict())
        for archive, each in objects.items()
    )
    return MadeArchive(file=str(file), content=content, archives=parts)


def make(made: MadeArchive, paths: Collection[str] = ()) -> None:
    """Let this machine have an archive, in its own workspace.

    Args:
        made: what the machine of the run has made, with paths of this one.
        paths: of the images that are read, absolute or relative to the archive; of shards, only
            those that hold one are there afterwards. Without any, all are.

    Raises:
        StorageError: if an object has changed, the store does not answer, or the disk is full.
        ConfigError: if the credentials are not accepted.
        DataError: if a compressed tar is damaged.
    """
    read_in_place = {}
    for each in _used(made, paths):
        if each.file == each.object:
            read_in_place[Path(each.file)] = KeptState(each.bytes, each.e_tag)
        else:
            _decompress(Path(each.object), Path(each.file))
    remote_data.stand_in(read_in_place)
    if made.content:
        write_text(Path(made.file), json.dumps(made.content))


def _used(made: MadeArchive, paths: Collection[str]) -> list[BucketArchive]:
    """Return the archives that are read: of an index of shards, those that hold the images."""
    shards = made.content.get("shards", {})
    if not shards or not paths:
        return list(made.archives)
    used = set()
    for path in paths:
        parts = path.removeprefix(f"{made.file}{os.sep}").split("/")
        names = ("/".join(parts[:count]) for count in range(1, len(parts)))
        used.add(next((shards[name] for name in names if name in shards), ""))
    return [each for each in made.archives if each.file in used]


def _decompress(file: Path, tar: Path) -> None:
    """Download a compressed tar and decompress it, unless this machine has done so before.

    Args:
        file: where the object is downloaded; it is removed afterwards.
        tar: the result, named after the digest of the object.

    Raises:
        StorageError: if the object has changed, the store does not answer, or the disk is full.
        DataError: if it is damaged.
    """
    if not tar.exists():
        scheme, bucket, *key = file.relative_to(place() / FOLDER).parts
        remote_data.local_files(place() / FOLDER / scheme / bucket, ["/".join(key)])
        if not file.is_file() or readable_archive(file, tar.parent) != tar:
            raise StorageError(
                f"{remote_data.shown_path(str(file))} has changed or was deleted while it was "
                "read. Run again."
            )
        remote_data.forget(file)
    cache.mark_used(tar)

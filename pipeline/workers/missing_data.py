"""Data that only the machine of a run has, so that workers on other machines cannot read it.

That is an index of shards, the encoding of an archive's names, or a tar that was decompressed. The
first two are small and sent to the node, which reads what they name from the bucket by ranges; a
compressed tar it downloads and decompresses itself, once, into its cache. All of it has to be in
the state in which the machine of the run has read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from patchline.pipeline.errors import DataError, StorageError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workspace import cache, chosen, remote_data
from patchline.pipeline.workspace.files.archives import (
    INDEX_SUFFIX,
    NAMED_SUFFIX,
    archives_of,
    origin_of,
    readable_archive,
)
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.placeholders import FOLDER
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, place
from patchline.pipeline.workspace.remote_data import KeptState


class BucketArchive(FrozenModel):
    """An uncompressed archive: an object, or what a compressed one holds."""

    file: str
    """The path where it is read."""
    object: str
    """The path where the object is downloaded, or a placeholder stands for it; the same as `file`
    if the object itself is read."""
    bytes: int
    """The size of the object, in bytes."""
    e_tag: str


class MadeArchive(FrozenModel):
    """An archive that was made of objects in buckets; paths are absolute, in the workspace."""

    file: str
    content: dict[str, Any]
    """What the file holds, as JSON: an index of shards, or the encoding of an archive's names;
    empty for a tar that was decompressed."""
    archives: tuple[BucketArchive, ...]
    """What it consists of; of a tar that was decompressed, itself."""


def find_made_archive(root: Path) -> MadeArchive | None:
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
    states = remote_data.read_kept_states(objects.values())
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
        paths: paths of the images that are read, absolute or relative to the archive; of shards,
            only those that hold one are there afterwards. Without any, all are.

    Raises:
        StorageError: if an object has changed, the store does not answer, or the disk is full.
        ConfigError: if the credentials are not accepted.
        DataError: if a compressed tar is damaged.
    """
    read_in_place = {}
    for each in _select_used(made, paths):
        if each.file == each.object:
            read_in_place[Path(each.file)] = KeptState(each.bytes, each.e_tag)
        else:
            _decompress(Path(each.object), Path(each.file))
    remote_data.stand_in(read_in_place)
    if made.content:
        write_text(Path(made.file), json.dumps(made.content))


def _select_used(made: MadeArchive, paths: Collection[str]) -> list[BucketArchive]:
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
        file: the path where the object is downloaded; it is removed afterwards.
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
                f"{remote_data.format_path(str(file))} has changed or was deleted while it was "
                "read. Run again."
            )
        remote_data.forget(file)
    cache.mark_used(tar)


_said: set[Path] = set()


def missing_data(place: Path) -> DataError:
    """Return the error for images that are not on a node.

    Args:
        place: the folder, archive or file that is not there. In the folder `sources` of a
            workspace, it is what the machine of the run has made of data that is not in a bucket.
    """
    if _is_made(place):
        return DataError(
            "A node of the cluster does not have the images: only the machine of the run has what "
            "was made of shards, a compressed tar or an archive with data.name_encoding on its "
            "disk, and the images that were in a table. Unpack the data into a folder that all "
            "nodes have at the same path, put shards and archives into a bucket, let all nodes "
            "mount the working directory (launcher.shared_folder), or set launcher.name to local."
        )
    return DataError(
        f"A node of the cluster has no {place}, where the images are. Mount it there at the same "
        "path, or set launcher.name to local."
    )


def stays_here(root: Path, paths: Iterable[str]) -> bool:
    """Return whether images can be read on this machine alone, and say so once.

    Args:
        root: the folder or archive that the paths are relative to.
        paths: paths of the images, absolute or relative to `root`.
    """
    root = root.absolute()
    if worker_start.current_launcher().shares_workspace() or not _is_only_here(root, paths):
        return False
    if root not in _said:
        _said.add(root)
        chosen.say(
            "the images are read on this machine alone: nodes of the cluster do not see its folder "
            f"{WORKSPACE}, in which it keeps the images or where each is (set "
            "launcher.shared_folder, or put shards and archives into a bucket)"
        )
    return True


def _is_only_here(root: Path, paths: Iterable[str]) -> bool:
    """Return whether only the machine of the run has a root, or keeps objects below a wider one.

    The first is so for what it has made of data that is not in a bucket; the second for a table on
    a disk that names images in a bucket.
    """
    objects = (WORKSPACE / FOLDER).absolute()
    if root in objects.parents:
        below = f"{objects.relative_to(root).as_posix()}/"
        return any(path.startswith(below) for path in paths)
    return _is_made(root) and find_made_archive(root) is None


def _is_made(place: Path) -> bool:
    sources = WORKSPACE / FOLDER.parts[0]
    tops = [each for each in place.parents if each.parts[-2:] == sources.parts]
    return bool(tops) and not place.is_relative_to(tops[0].parent / FOLDER)

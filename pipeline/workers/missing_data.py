"""Data that only the machine of a run has, so that workers on other machines cannot read it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from patchline.pipeline.errors import DataError
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.bucket_archives import made_archive
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files.placeholders import FOLDER
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE

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
        paths: of the images.
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
    return _is_made(root) and made_archive(root) is None


def _is_made(place: Path) -> bool:
    sources = WORKSPACE / FOLDER.parts[0]
    tops = [each for each in place.parents if each.parts[-2:] == sources.parts]
    return bool(tops) and not place.is_relative_to(tops[0].parent / FOLDER)

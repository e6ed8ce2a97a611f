"""A snapshot of a watched folder: what tells one state of it from another."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.workspace import remote_data
from patchline.pipeline.workspace.address import is_of_store
from patchline.pipeline.workspace.files.folder_walk import walk_files
from patchline.pipeline.workspace.files.ignored_files import DEFAULT_IGNORED, IgnoredFiles

_UNFINISHED_SUFFIX = ".part"


@dataclass(frozen=True)
class Snapshot:
    """The state of a folder: a digest of paths, sizes and modification times, and a file count."""

    digest: str
    files: int
    folders: str
    """Digest of the paths of the subfolders that hold files."""


def snapshot(folder: Path | str, ignored: IgnoredFiles = DEFAULT_IGNORED) -> Snapshot:
    """Return the state of a folder without opening a file; linked folders are followed.

    Hidden files and folders are skipped, and so are files that end in `.part`.

    Args:
        folder: the folder, or an address on an object store.
        ignored: tells which other files and folders are skipped, as by a run on the folder.

    Raises:
        OSError: if the folder itself cannot be read.
        PipelineError: if the object store cannot be read.
    """
    if is_of_store(str(folder)):
        return _remote_snapshot(str(folder), ignored)
    files: list[tuple[str, int, int]] = []

    def note_unreadable(below: str, error: OSError) -> None:
        if not below:
            raise error
        files.append((f"{below}/", -1, -1))

    for path, entry in walk_files(Path(folder), note_unreadable, ignored):
        if entry.name.endswith(_UNFINISHED_SUFFIX):
            continue
        status = _status(entry)
        if status is not None:
            files.append((path, status.st_size, status.st_mtime_ns))
    digest = hashlib.sha256()
    for path, size, modified in sorted(files):
        digest.update(f"{path}\0{size}\0{modified}\n".encode("utf-8", "surrogateescape"))
    return Snapshot(digest.hexdigest(), len(files), _folders(path for path, _, _ in files))


def _remote_snapshot(address: str, ignored: IgnoredFiles) -> Snapshot:
    states = remote_data.states(address)
    names = ignored.remaining(
        [
            key
            for key in sorted(states)
            if not key.endswith(_UNFINISHED_SUFFIX)
            and not any(part.startswith(".") for part in key.split("/"))
        ]
    )
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{states[name]}\n".encode("utf-8", "surrogateescape"))
    return Snapshot(digest.hexdigest(), len(names), _folders(names))


def _folders(paths: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for folder in sorted({path.rpartition("/")[0] for path in paths}):
        digest.update(f"{folder}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of a file, or of the link itself if it is broken."""
    for follow in (True, False):
        with contextlib.suppress(OSError):
            return entry.stat(follow_symlinks=follow)
    return None  # deleted in the meantime

"""Files that a workspace keeps so that nobody computes them again, such as features.

In a shared workspace they are fetched when a machine lacks them, and sent once they are complete.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from patchline.pipeline.errors import StorageError
from patchline.pipeline.files.workspace_folder import WORKSPACE, make_folder
from patchline.pipeline.workspace import cache, chosen
from patchline.pipeline.workspace.shared_files import DamagedObjectError, Reference, SharedFiles

_LOCK = ".lock"


def fetch_file(file: Path) -> None:
    """Fetch a file that saves work, unless there is one; a store that is away has none."""
    with contextlib.suppress(StorageError, DamagedObjectError):
        shared = _shared(file)
        if shared is None or file.exists():
            return
        named = shared.find(_name(file))
        digest = named.reference.files.get(file.name) if named else None
        if digest is not None:
            shared.fetch(Reference(files={file.name: digest}), file.parent)


def send_file(file: Path) -> None:
    """Send a file that saves work; it replaces an earlier one.

    A store that does not take it is no error: others then do the work again.
    """
    with contextlib.suppress(StorageError):
        shared = _shared(file)
        if shared is not None:
            shared.publish(_name(file), file.parent, [file.name])


def fetch_folder(folder: Path) -> None:
    """Fetch a folder, unless it is there.

    Raises:
        StorageError: if the store does not answer.
    """
    shared = _shared(folder)
    cache.mark_used(folder)
    if shared is not None and not folder.exists():
        make_folder(folder.parent)
        shared.fetch_folder(_name(folder), folder)


def send_folder(folder: Path) -> None:
    """Send a folder whose files are complete; it replaces an earlier one.

    Raises:
        StorageError: if the store does not take it.
    """
    shared = _shared(folder)
    if shared is not None:
        files = (each for each in folder.rglob("*") if each.is_file())
        names = sorted(each.relative_to(folder).as_posix() for each in files)
        shared.publish(_name(folder), folder, [name for name in names if _is_kept(name)])


def _is_kept(name: str) -> bool:
    return not name.endswith(_LOCK) and not name.rpartition("/")[2].startswith(".")


def _shared(path: Path) -> SharedFiles | None:
    """Return the shared files if a path is in their cache."""
    if chosen.address() is None or not path.resolve().is_relative_to(WORKSPACE.resolve()):
        return None
    return chosen.shared()


def _name(path: Path) -> str:
    return path.resolve().relative_to(WORKSPACE.resolve()).as_posix()

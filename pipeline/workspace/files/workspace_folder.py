"""The workspace: the private folder `.patchline` in the working directory.

It holds databases, logs and addresses that may contain secrets. So its mode is 0700 whatever the
umask is, and the next command restores that mode if it is wider.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchline.pipeline.errors import StorageError
from patchline.pipeline.workspace.files import workspace_identity

logger = logging.getLogger(__name__)

WORKSPACE = Path(".patchline")
"""Folder in the working directory; `WORKSPACE.resolve()` is its absolute path."""
_STORE = "mlflow.db"
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
_OTHERS = 0o077
_told: set[Path] = set()
_scratch: Path | None = None
"""Where this process keeps its caches instead of a workspace that is read-only."""


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if needed; a workspace among them becomes private.

    Raises:
        OSError: if it cannot be created.
    """
    for place in (folder, *folder.parents):
        if place.name == WORKSPACE.name:
            _make_private(place)
            break
    folder.mkdir(parents=True, exist_ok=True)


def tighten() -> None:
    """Make the workspace of the working directory private, if there is one to be written."""
    if WORKSPACE.is_dir() and not is_read_only():
        _narrow(WORKSPACE, _FOLDER_MODE)


def is_read_only() -> bool:
    """Return whether the working directory holds a workspace that this process may not write."""
    places = [place for place in (WORKSPACE, Path(_STORE)) if place.exists()]
    return bool(places) and not all(os.access(each, os.W_OK) for each in (Path(), *places))


def place() -> Path:
    """Return where a command keeps its caches: the workspace, unless that is read-only."""
    return _scratch or WORKSPACE.resolve()


def use_scratch(folder: Path | None) -> None:
    """Keep the caches of this process elsewhere, because the workspace is read-only."""
    global _scratch  # noqa: PLW0603 - a command has one workspace
    _scratch = folder


def check_paths() -> None:
    """Refuse a workspace that was moved or copied, and whose paths cannot follow it.

    Raises:
        StorageError: if it may not be written, and the paths in its store lead elsewhere.
    """
    identity = workspace_identity.read(WORKSPACE)
    if identity is None or is_same_folder(Path(identity.folder), Path()):
        return
    raise StorageError(
        f"The workspace {Path.cwd()} was last used in {identity.folder}, where its runs and models "
        "have their files, and may not be written, so that they cannot follow it. Make it "
        f"writable, mount it at {identity.folder}, or copy it (`cp -r`) to a folder of yours."
    )


def is_same_folder(one: Path, other: Path) -> bool:
    """Return whether two paths name one folder, as far as can be seen."""
    with contextlib.suppress(OSError):
        return one.samefile(other)
    return False


@contextmanager
def remove_if_unused() -> Iterator[None]:
    """Remove the workspace if the block has created it, fails, and has left no file in it.

    So a command that refuses its input leaves nothing behind.
    """
    workspace = WORKSPACE.resolve()
    existed = workspace.exists()
    try:
        yield
    except BaseException:
        if not existed:
            _remove_if_empty(workspace)
        raise


def is_at_home() -> bool:
    """Return whether the workspace of the working directory lies where it was last used.

    Without a workspace and without a store that a workspace may have left, this is true.
    """
    if not WORKSPACE.is_dir():
        return not Path(_STORE).is_file()
    identity = workspace_identity.read(WORKSPACE)
    return identity is not None and workspace_identity.is_at_home(WORKSPACE, identity)


def make_private_file(file: Path) -> None:
    """Create an empty file that only its owner can read and write, or restrict an existing one.

    Raises:
        OSError: if it cannot be created.
    """
    make_folder(file.parent)
    os.close(os.open(file, os.O_CREAT | os.O_RDWR, _FILE_MODE))
    _narrow(file, _FILE_MODE)


def _make_private(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        place.mkdir(_FOLDER_MODE)
        with contextlib.suppress(OSError):  # a command makes up for it
            workspace_identity.write(place, workspace_identity.new(place))
    _narrow(place, _FOLDER_MODE)


def _remove_if_empty(workspace: Path) -> None:
    """Remove a workspace that holds only its identity and folders without a file."""
    identity = workspace / workspace_identity.FILE
    if any(not each.is_dir() and each != identity for each in workspace.rglob("*")):
        return
    identity.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # another process has begun to use it
        for folder, _, _ in os.walk(workspace, topdown=False):
            Path(folder).rmdir()


def _narrow(place: Path, mode: int) -> None:
    """Set a mode where others have access, or an unusual umask denies it to the owner."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):
        if stat.S_IMODE(place.stat().st_mode) & (_OTHERS | mode) != mode:
            with contextlib.suppress(
                OSError
            ):  # another user's file, or a file system without modes
                place.chmod(mode)
            present = stat.S_IMODE(place.stat().st_mode)
            if present & _OTHERS:
                _tell(place, present)


def _tell(place: Path, present: int) -> None:
    if place.resolve() not in _told:
        _told.add(place.resolve())
        logger.warning(
            "Other users of this machine may read %s: its mode is %04o and cannot be changed to "
            "0700. Work in a folder of your own, on a file system that supports modes.",
            place,
            present,
        )


STORES, FEATURES, PREDICTIONS, RUNS = "prepared", "features", "teacher_predictions", "runs"
"""Folders of a workspace: decoded images, features of frozen models, what teachers have predicted,
and what each run wrote."""
REQUEST_FILE = "request.json"
"""File in a run's folder: what is needed to resume it."""
FEATURES_FILE = "features.json"
"""File in the folder of a training run: which features it has used."""
LAST_CHECKPOINT, PREVIOUS_CHECKPOINT = "last.safetensors", "previous.safetensors"
PROGRESS = "progress"
"""Key of a checkpoint's metadata that has the `step`."""
LAST_WEIGHTS = "last_weights"
"""Folder in that of a training run: the weights that are averaged at its end."""

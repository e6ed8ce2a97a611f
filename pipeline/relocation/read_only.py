"""A workspace that may not be written: a read-only disk, a snapshot, another user's folder.

MLflow writes to a database even to read it, and so do caches of data. So a command works on a
private copy of the database, in which moved paths lead to where the files are now, and leaves its
caches in a temporary folder. Both end with the command; the workspace keeps every byte.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.errors import StorageError
from patchline.pipeline.files import workspace_folder, workspace_identity
from patchline.pipeline.files.path_uris import sqlite_uri
from patchline.pipeline.files.workspace_folder import WORKSPACE
from patchline.pipeline.relocation import path_rewriting
from patchline.pipeline.relocation.exporting import copy_database
from patchline.pipeline.tracking.tracking_store import DATABASE

READERS = frozenset(
    {"models", "predict", "explain", "plugins", "workspace", "down", "notify list"}
    | {"schedule list", "data inspect", "data diff", "data preview"}
)
"""Commands that need not write to the workspace."""
_REMEMBERED = ("splits", "manifests")
"""What a reading command needs to give the same answer as in the workspace."""
_VARIABLE = "MLFLOW_TRACKING_URI"


def check(arguments: list[str]) -> None:
    """Refuse a command that writes to the workspace.

    Args:
        arguments: the command line.

    Raises:
        StorageError: if the command writes.
    """
    words = [argument for argument in arguments if not argument.startswith("-")]
    removes = any(argument.split("=")[0] == "--yes" for argument in arguments)
    dry = "--dry-run" in arguments or (words[:1] == ["clean"] and not removes)
    if not words or dry or words[0] in READERS or " ".join(words[:2]) in READERS:
        return
    has_words = words[0] in {"schedule", "data", "notify"}
    command = " ".join(words[:2] if has_words else words[:1])
    raise refused(f"patchline {command}{' --yes' if command == 'clean' else ''}")


def refused(call: str) -> StorageError:
    """Return the error for a command, or a function of the Python API, that writes."""
    return StorageError(
        f"The workspace {Path.cwd()} may not be written, and `{call}` writes to it. "
        "Make it writable, or copy it (`cp -r`, or `patchline workspace export FILE`) to a folder "
        "of yours and work there."
    )


def enter() -> str:
    """Let this command read the workspace of the working directory; return what to say.

    A process keeps one copy of a workspace for all calls of the Python API, and copies the database
    again only when it has changed.

    Raises:
        StorageError: if the database cannot be read.
    """
    here = Path.cwd()
    if (copy := _copies.get(here)) is None:
        scratch = Path(tempfile.mkdtemp(prefix="patchline-read-only-"))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        (scratch / WORKSPACE).mkdir(mode=0o700)
        copy = _copies[here] = _Copy(scratch)
    for name in _REMEMBERED:
        if os.access(WORKSPACE / name, os.R_OK | os.X_OK):
            _copy_folder(WORKSPACE / name, copy.folder / WORKSPACE / name)
    workspace_folder.use_scratch(copy.folder / WORKSPACE)
    database = Path(DATABASE).resolve()
    if database.is_file() and not os.environ.get(_VARIABLE):
        os.environ[_VARIABLE] = sqlite_uri(copy.of(database))
    return f"The workspace {here} is read-only: this command records nothing in it."


def is_copy(database: Path) -> bool:
    """Return whether a database is the copy of one that this process may not write."""
    return any(database.is_relative_to(each.folder) for each in _copies.values())


def _copy_folder(source: Path, target: Path) -> None:
    """Copy a folder, but not its modes: a copy without write permission could not be deleted."""
    for folder, _, names in os.walk(source):
        copied = target / Path(folder).relative_to(source)
        copied.mkdir(mode=0o700, exist_ok=True)
        for name in names:
            shutil.copyfile(Path(folder) / name, copied / name)


@dataclass
class _Copy:
    """The private copy that this process has of one workspace."""

    folder: Path
    state: tuple[tuple[int, int] | None, ...] = ()
    """Of the database and SQLite's files beside it when they were copied, see `_state`."""
    database: Path | None = None

    def of(self, database: Path) -> Path:
        """Return the copy of the database as it is now.

        A changed database gets a file of a new name: MLflow keeps the old one open.
        """
        now = _state(database)
        if self.database is None or now != self.state:
            parent = Path(tempfile.mkdtemp(dir=self.folder))
            copy_database(database, parent / DATABASE)
            _follow(parent / DATABASE)
            if self.database is not None:
                shutil.rmtree(self.database.parent, ignore_errors=True)
            self.database, self.state = parent / DATABASE, now
        return self.database


_copies: dict[Path, _Copy] = {}
"""By working directory."""


def _state(database: Path) -> tuple[tuple[int, int] | None, ...]:
    """Return time of change (ns) and size (bytes) of a database, its log and its journal."""
    state: list[tuple[int, int] | None] = []
    for suffix in ("", "-wal", "-journal"):
        try:
            status = database.with_name(database.name + suffix).stat()
        except FileNotFoundError:
            state.append(None)
        else:
            state.append((status.st_mtime_ns, status.st_size))
    return tuple(state)


def _follow(copy: Path) -> None:
    """Let the copy's paths lead into this folder, if the workspace was moved or copied."""
    here = WORKSPACE.resolve()
    identity = workspace_identity.read(here)
    if identity and identity.folder != str(here.parent):
        rewrite = path_rewriting.between(Path(identity.folder), here.parent)
        path_rewriting.rewrite_mlflow(copy, rewrite)

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
from pathlib import Path

from pipeline import workspace
from pipeline.errors import StorageError
from pipeline.files import workspace_identity
from pipeline.files.path_uris import sqlite_uri
from pipeline.relocation import path_rewriting
from pipeline.relocation.exporting import copy_database
from pipeline.tracking.tracking_store import DATABASE
from pipeline.workspace import WORKSPACE

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
    asks = {"--help", "-h", "--version", "--dry-run"} & set(arguments)
    if not words or asks or words[0] in READERS or " ".join(words[:2]) in READERS:
        return
    known = words[0] in {"schedule", "data", "notify"}
    command = " ".join(words[:2] if known else words[:1])
    raise StorageError(
        f"The workspace {Path.cwd()} may not be written, and `patchline {command}` writes to it. "
        "Make it writable, or copy it (`cp -r`, or `patchline workspace export FILE`) to a folder "
        "of yours and work there."
    )


def enter() -> str:
    """Let this command read the workspace of the working directory; return what to say.

    Raises:
        StorageError: if the database cannot be read.
    """
    scratch = Path(tempfile.mkdtemp(prefix="patchline-read-only-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    place = scratch / WORKSPACE
    place.mkdir(mode=0o700)
    for name in _REMEMBERED:
        if os.access(WORKSPACE / name, os.R_OK | os.X_OK):
            shutil.copytree(WORKSPACE / name, place / name)
    workspace.use_scratch(place)
    database = Path(DATABASE).resolve()
    if database.is_file() and not os.environ.get(_VARIABLE):
        copy_database(database, scratch / DATABASE)
        _follow(scratch / DATABASE)
        os.environ[_VARIABLE] = sqlite_uri(scratch / DATABASE)
    return f"The workspace {Path.cwd()} is read-only: this command records nothing in it."


def _follow(copy: Path) -> None:
    """Let the copy's paths lead into this folder, if the workspace was moved or copied."""
    here = WORKSPACE.resolve()
    identity = workspace_identity.read(here)
    if identity and identity.folder != str(here.parent):
        rewrite = path_rewriting.between(Path(identity.folder), here.parent)
        path_rewriting.rewrite_mlflow(copy, rewrite)

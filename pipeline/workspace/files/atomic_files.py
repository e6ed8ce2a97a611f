"""Write files atomically: under a temporary name, then renamed, so that a file is always whole."""

from __future__ import annotations

import errno
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from patchline.pipeline.errors import StorageError
from patchline.pipeline.workspace.files.workspace_folder import make_folder, make_private_file

_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_TOO_LITTLE = 2**20
"""Bytes. SQLite and logs need more than that to continue."""


@contextmanager
def replace_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`, and rename it to `target` if the block succeeds.

    The block writes a file, or a folder, which replaces another one with all that is in it.

    Raises:
        StorageError: if the folder may not be written, or the disk is full.
    """
    with storage_errors(target):
        make_folder(target.parent)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
        try:
            yield temporary
            if temporary.is_dir():
                shutil.rmtree(target, ignore_errors=True)
            temporary.replace(target)
        finally:
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)


@contextmanager
def open_replacing(target: Path) -> Iterator[BinaryIO]:
    """Yield an empty binary file that replaces `target` if the block succeeds."""
    with replace_file(target) as temporary, temporary.open("wb") as opened:
        yield opened


@contextmanager
def storage_errors(target: Path) -> Iterator[None]:
    """Turn a full or read-only disk, or a link, into a `StorageError` that names the path."""
    try:
        yield
    except OSError as error:
        if error.errno in _READ_ONLY:
            raise StorageError(
                f"{target} may not be written ({error.strerror}). Work in a folder that you may "
                "write to."
            ) from error
        if error.errno == errno.ELOOP:
            raise StorageError(
                f"{target} is a link, or lies behind one that leads in a circle, and is not "
                "followed. Remove it."
            ) from error
        if error.errno in _FULL:
            raise StorageError(
                f"There is no space left to write {target}. Free some, or work on another disk."
            ) from error
        raise


def full_disk(folder: Path) -> StorageError | None:
    """Return an error if the disk of a folder, or of the temporary directory, is full.

    For failures that do not name their cause, such as a server's error or a silent crash.
    """
    for place, remedy in ((folder, ""), (_temporary(), ", or set TMPDIR to another disk")):
        try:
            free = shutil.disk_usage(place).free
        except OSError:
            continue
        if free < _TOO_LITTLE:
            return StorageError(
                f"There is no space left on the disk of {place.resolve()} ({free / 2**20:.1f} MiB "
                f"are free). Free some{remedy}, and try again."
            )
    return None


def _temporary() -> Path:
    """Return the temporary directory; the working directory if there is none to write to."""
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        return Path()


def write_private_text(target: Path, text: str) -> None:
    """Write a text file atomically; only its owner may read it."""
    with replace_file(target) as temporary:
        make_private_file(temporary)
        temporary.write_text(text, encoding="utf-8")


def write_text(target: Path, text: str) -> None:
    """Write a text file atomically."""
    with replace_file(target) as temporary:
        temporary.write_text(text, encoding="utf-8")

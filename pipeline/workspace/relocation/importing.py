"""Restore a workspace from its archive into an empty folder, and let it follow that folder.

Nothing in the archive is trusted: only plain files whose paths belong to a workspace are written,
into a new folder beside the target that is renamed once every digest has been verified.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tarfile
import uuid
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.workspace.files import workspace_identity
from patchline.pipeline.workspace.files.archive_members import MOST_MEMBERS
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, make_folder
from patchline.pipeline.workspace.relocation.exporting import (
    FORMAT,
    LIST,
    Contents,
    Member,
    Progress,
    member_refusal,
)

_PIECE_BYTES = 1 << 20
_MOST_LIST_BYTES = 1 << 30
_IMPOSSIBLE = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ)
"""What an operating system says about a path that cannot be a file, whatever the disk is like."""


def restore(archive_file: Path, folder: Path, progress: Progress) -> Contents:
    """Unpack an archive into a folder that is empty or does not exist.

    Args:
        archive_file: written by `patchline workspace export`.
        folder: becomes the workspace; its records still name the old folder.
        progress: called with a label, the bytes that were read, and all bytes.

    Raises:
        ConfigError: if the folder is not empty, or a newer Patchline wrote the archive.
        DataError: if the archive is damaged or holds something else than a workspace.
        StorageError: if the disk is full or read-only.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} is not an empty folder. A workspace is restored into one that is empty or "
            "does not exist; name another."
        )
    with storage_errors(folder):
        make_folder(folder.absolute().parent)
        unpacked = (
            folder.absolute().parent / f".{folder.name or 'workspace'}.{uuid.uuid4().hex[:8]}"
        )
        unpacked.mkdir(mode=0o700)
        try:
            contents = _unpack(archive_file, unpacked, progress)
            if f"{WORKSPACE}/{workspace_identity.FILE}" not in contents.members:
                (unpacked / WORKSPACE / workspace_identity.FILE).unlink(missing_ok=True)
            _into_place(unpacked, folder)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
    return contents


def _into_place(unpacked: Path, folder: Path) -> None:
    """Move the files into the folder, which may be the working directory of this process."""
    make_folder(folder)
    for each in sorted(unpacked.iterdir(), reverse=True):  # the database, which shows it, last
        each.rename(folder / each.name)


def _unpack(archive_file: Path, target: Path, progress: Progress) -> Contents:
    members: dict[str, Member] = {}
    listed = b""
    try:
        size = archive_file.stat().st_size
        archive_file.open("rb").close()
    except OSError as error:
        raise ConfigError(
            f"The archive {archive_file} cannot be read ({error.strerror}). Check the path and its "
            "permissions."
        ) from error
    try:
        with tarfile.open(archive_file, "r:") as archive:
            for info in archive:
                _check(archive_file, info, members, size)
                opened = archive.extractfile(info)
                if opened is None:
                    raise _damaged(archive_file, f"{info.name} is not a file")
                if info.name == LIST:
                    listed = opened.read(_MOST_LIST_BYTES)
                    continue
                members[info.name] = _written(archive_file, info.name, opened, target)
                progress("Restoring", min(info.offset_data + info.size, size), size)
    except (tarfile.TarError, EOFError) as error:
        raise _damaged(archive_file, str(error)) from error
    return _verified(archive_file, listed, members)


def _check(
    archive_file: Path, info: tarfile.TarInfo, members: dict[str, Member], archive_bytes: int
) -> None:
    """Refuse a member that is no plain file of a workspace, or would unpack to more than it is."""
    reason = member_refusal(info.name)
    if not info.isreg() or info.issparse():
        reason = "it is not a plain file"
    elif info.name in members:
        reason = "it is there twice"
    elif info.offset_data + info.size > archive_bytes or len(members) > MOST_MEMBERS:
        reason = "the archive is cut off or too large"
    if reason:
        raise _damaged(archive_file, f"{info.name!r}: {reason}")


def _written(archive_file: Path, name: str, opened: IO[bytes], folder: Path) -> Member:
    """Write a member.

    Raises:
        DataError: if its path cannot be a file here: another member is its folder, or is in it.
    """
    try:
        return _write(opened, folder / name)
    except OSError as error:
        if error.errno not in _IMPOSSIBLE:
            raise
        raise _damaged(archive_file, f"{name!r}: {os.strerror(error.errno)}") from error


def _write(opened: IO[bytes], target: Path) -> Member:
    make_folder(target.parent)
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as out:
        while piece := opened.read(_PIECE_BYTES):
            digest.update(piece)
            out.write(piece)
            size += len(piece)
    return Member(bytes=size, sha256=digest.hexdigest())


def _verified(archive_file: Path, listed: bytes, members: dict[str, Member]) -> Contents:
    if not listed:
        raise _damaged(archive_file, f"it has no {LIST}")
    try:
        contents = Contents.model_validate_json(listed)
    except ValidationError as error:
        raise _damaged(archive_file, f"its {LIST} cannot be read") from error
    if contents.format > FORMAT:
        raise ConfigError(
            f"{archive_file} was written by the newer Patchline {contents.patchline}. Install "
            "that version to import it."
        )
    missing = sorted(contents.members.keys() - members.keys())
    added = sorted(members.keys() - contents.members.keys())
    changed = [path for path, member in contents.members.items() if members.get(path) != member]
    for paths, words in (
        (missing, "is missing"),
        (added, "is not listed"),
        (changed, "is damaged"),
    ):
        if paths:
            more = f" and {len(paths) - 1} more files" if len(paths) > 1 else ""
            raise _damaged(archive_file, f"{paths[0]} {words}{more}")
    return contents


def _damaged(archive_file: Path, reason: str) -> DataError:
    return DataError(
        f"{archive_file} cannot be restored ({reason}). Nothing was written. Copy the archive "
        "again, or use another one made by `patchline workspace export`."
    )

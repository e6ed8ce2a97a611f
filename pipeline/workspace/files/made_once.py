"""Files that are made once and then kept, such as an unpacked archive.

A file that exists is complete. One process makes it while the others wait; what a killed process
left behind is deleted, and the file is made again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from patchline.pipeline.workspace.files.atomic_files import replacing, write_text
from patchline.pipeline.workspace.files.file_digest import FileDigest, digest_of
from patchline.pipeline.workspace.files.file_locks import locked

_LEFT_BEHIND = ".*.part"
_RECENT_NANOSECONDS = 2 * 10**9
"""A file system may give a change that soon after another one the same time."""


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Return a file, and make it if it does not exist.

    Args:
        target: the file; its folder holds nothing but such files.
        make: writes the file at the path that it is given.

    Raises:
        StorageError: if the folder may not be written, or the disk is full.
    """
    if target.exists():
        return target
    with locked(target.parent / "making.lock"):
        if not target.exists():
            for file in target.parent.glob(_LEFT_BEHIND):
                file.unlink(missing_ok=True)
            with replacing(target) as temporary:
                make(temporary)
    return target


def known_digest(file: Path, folder: Path) -> str:
    """Return the SHA-256 of a file, computed again only if its size or its date has changed.

    Args:
        file: any file.
        folder: keeps a record for each file.
    """
    status = file.stat()
    times = status.st_mtime_ns, status.st_ctime_ns
    facts = [str(file.resolve()), status.st_size, *times, status.st_ino]
    name = hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    record = folder / f"{name}.json"
    try:
        return FileDigest.model_validate_json(record.read_text("utf-8")).sha256
    except (OSError, ValueError):
        digest = digest_of(file)
    if time.time_ns() - max(times) > _RECENT_NANOSECONDS:
        write_text(record, digest.model_dump_json())
    return digest.sha256

"""The size of what this machine keeps of a shared workspace, and of data on object stores.

What is there once more on the store, or can be made again, goes when all of it together is larger
than the limit: what was used last stays longest, and what runs and other processes use now stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from patchline.pipeline.errors import StorageError
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.cache_limit import limit
from patchline.pipeline.workspace.files.file_locks import Liveness, acquire, hold_lock, holder_of
from patchline.pipeline.workspace.files.placeholders import FOLDER, PARTS_FOLDER
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, place

if TYPE_CHECKING:
    from filelock import BaseFileLock

_OF_SHARED = ("prepared/*", "features/*", "initial_weights/*")
_UNPACKED = f"{FOLDER.parts[0]}/*/{'[0-9a-f]' * 32}.tar"
"""Compressed tars that were decompressed, named after their digest (`files.archives`)."""
_OF_DATA = (f"{FOLDER}/*/*", f"{PARTS_FOLDER}/*/*", _UNPACKED)
_MARK = ".used"
"""Suffix of a file whose time says when a tar was last used; its own tells whether it changed."""


class CacheEntry(NamedTuple):
    """A folder or an unpacked archive that may go as a whole."""

    used: float
    """When it was last used, in seconds since the epoch."""
    path: Path
    bytes: int


class CacheState(NamedTuple):
    """The cache after old entries were removed."""

    removed: tuple[CacheEntry, ...]
    bytes: int
    """Size of what is left."""
    limit: int


def mark_used(path: Path) -> None:
    """Note that an entry of the cache is used now, and as long as this process runs.

    Args:
        path: a folder; or an archive, of which nothing is noted unless it was unpacked here.
    """
    with contextlib.suppress(OSError, StorageError):  # a workspace that is read-only
        is_entry = _hold(path.resolve())
        if path.is_dir():
            os.utime(path)
        elif is_entry:
            _mark_of(path).touch()


def shrink(in_use_since: float | None = None) -> CacheState:
    """Remove the entries that were not used for longest until the rest fits the limit.

    Args:
        in_use_since: entries that were used since then stay, in seconds since the epoch; None if
            no run is active. Those that another process uses stay, too.

    Raises:
        ConfigError: if the limit is no size.
    """
    most, entries = limit(), sorted(_entries())
    _forget_ended()
    total = sum(each.bytes for each in entries)
    removed = []
    for each in entries:
        in_use = in_use_since is not None and each.used >= in_use_since
        if total > most and not in_use and _is_removed(each.path):
            total -= each.bytes
            removed.append(each)
    return CacheState(tuple(removed), total, most)


def _entries() -> Iterator[CacheEntry]:
    """Yield what may go; of a workspace without a store, downloaded data alone."""
    workspace = WORKSPACE.resolve()
    patterns = _OF_DATA if chosen.address() is None else (*_OF_SHARED, *_OF_DATA)
    for pattern in patterns:
        for folder in workspace.glob(pattern):
            is_entry = folder.is_dir() or pattern == _UNPACKED
            if is_entry and not any(part.startswith(".") for part in folder.parts[-2:]):
                size = sum(_size(file) for file in folder.rglob("*")) or _size(folder)
                yield CacheEntry(_read_last_use(folder), folder, size)


def _read_last_use(path: Path) -> float:
    mark = _mark_of(path)
    try:
        return (mark if mark.exists() else path).stat().st_mtime
    except OSError:
        return time.time()


def _mark_of(path: Path) -> Path:
    return path.with_name(f"{path.name}{_MARK}")


def _size(file: Path) -> int:
    try:
        return 0 if file.is_dir() else file.lstat().st_blocks * 512
    except OSError:
        return 0


def _is_removed(folder: Path) -> bool:
    """Remove an entry under another name, so that nobody finds a part of it, unless it is used."""
    gone = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    with hold_lock(_gate()):
        if _is_used(folder):
            return False
        with contextlib.suppress(OSError):
            folder.rename(gone)
    if gone.is_dir():
        shutil.rmtree(gone, ignore_errors=True)
    else:
        gone.unlink(missing_ok=True)
        _mark_of(folder).unlink(missing_ok=True)
    return True


def _hold(folder: Path) -> bool:
    """Hold a lock that tells other processes that this one uses an entry of the cache.

    The system releases it when the process ends, however it ends.

    Returns:
        Whether it is an entry.
    """
    top = place()
    inside = folder.relative_to(top) if folder.is_relative_to(top) else Path()
    is_entry = any(
        inside.match(each) and len(inside.parts) == len(Path(each).parts)
        for each in (*_OF_SHARED, *_OF_DATA)
    )
    with _holding:
        if is_entry and folder not in _held:
            name = f"{_number(folder)}.{os.getpid()}-{secrets.token_hex(4)}.lock"
            with hold_lock(_gate()):
                _held[folder] = acquire(_locks() / name, 0)
    return is_entry


def _is_used(folder: Path) -> bool:
    """Return whether another process holds a lock for a folder, or one that cannot be seen."""
    own = _held.get(folder)
    files = map(os.fspath, _locks().glob(f"{_number(folder)}.*.lock"))
    others = [Path(each) for each in files if own is None or each != own.lock_file]
    return any(holder_of(each) is not Liveness.DEAD for each in others)


def _forget_ended() -> None:
    """Remove the locks of processes that have ended."""
    files = list(_locks().glob("*.*.lock"))
    with hold_lock(_gate()) if files else contextlib.nullcontext():
        for file in files:
            if holder_of(file) is Liveness.DEAD:
                file.unlink(missing_ok=True)


def _number(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]


def _gate() -> Path:
    """Return the lock under which a folder is marked or removed, so that no process does both."""
    return _locks() / "gate.lock"


def _locks() -> Path:
    return place() / "locks" / "cache"


_holding = threading.Lock()
_held: dict[Path, BaseFileLock | None] = {}
"""The locks of this process, by the folder that each is for."""

"""What is known about files that were downloaded from an object store.

For each object, the index of a folder holds ETag and size, then size and time of the local file. It
is written at the end of a download, and a journal beside it as each object arrives, so a process
that is killed loses nothing of what it has downloaded.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchline.pipeline.workspace.files.atomic_files import storage_errors, write_text
from patchline.pipeline.workspace.files.file_locks import locked
from patchline.pipeline.workspace.files.json_lines import AppendLog
from patchline.pipeline.workspace.files.placeholders import FOLDER
from patchline.pipeline.workspace.files.workspace_folder import make_folder, place

_INDEXES = ".indexes"


class RemoteIndex(dict[str, str]):
    """The index of a folder: the state of each object by its key.

    Args:
        file: of the index; whoever changes it holds its lock.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(_read(file) or {})
        self._file, self._journal = file, AppendLog(file.with_suffix(".journal"))
        self._saved = dict(self)
        self._lock = threading.Lock()
        self.update(self._journal.new_values())
        self.save()

    def note(self, key: str, state: str) -> None:
        """Record an object that is complete; several threads may do so at the same time.

        Raises:
            StorageError: if the disk is full or read-only.
        """
        with self._lock:
            self[key] = state
            self._journal.append([key, state])

    def save(self) -> None:
        """Write the index if it has changed, and remove the journal.

        Raises:
            StorageError: if the disk is full or read-only.
        """
        if self != self._saved:
            write_text(self._file, json.dumps(self))
            self._saved = dict(self)
        if self._journal.file.exists():  # nothing is removed from a read-only disk
            with storage_errors(self._journal.file):
                self._journal.file.unlink(missing_ok=True)


@contextmanager
def indexed(folder: Path) -> Iterator[RemoteIndex]:
    """Yield the index of a folder, under a lock, and save it at the end."""
    file = _index_file(folder)
    make_folder(folder)
    make_folder(file.parent)
    with locked(file.with_suffix(".lock")):
        index = RemoteIndex(file)
        try:
            yield index
        finally:
            index.save()


def read_index(folder: Path) -> dict[str, str] | None:
    """Return the index of a folder; None if it has none that can be read."""
    return _read(_index_file(folder))


def file_state(file: str) -> str:
    """Return size and time of a local file; nothing if there is none."""
    try:
        status = os.stat(file)  # noqa: PTH116 - a Path for each of a million files takes its time
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _index_file(folder: Path) -> Path:
    top = place() / FOLDER
    return top / _INDEXES / f"{folder.relative_to(top).as_posix().replace('/', '%')}.json"


def _read(file: Path) -> dict[str, str] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {str(key): str(state) for key, state in content.items()}
    except (OSError, ValueError, AttributeError):
        return None

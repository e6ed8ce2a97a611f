"""A workspace that machines share: a folder, and the object store that it is the cache of."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from patchline.pipeline.errors import StorageError
from patchline.pipeline.workspace import cache, chosen
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.pipeline.workspace.run_folders import CheckpointSender
from patchline.pipeline.workspace.shared_files import (
    DamagedObjectError,
    Reference,
    SharedFiles,
    content_key,
)
from patchline.pipeline.workspace.workspace import Workspace


class SharedWorkspace(Workspace):
    """Fetches what this machine lacks, and sends what others may need.

    Args:
        folder: the cache on this machine.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sender: CheckpointSender | None = None
        self.uri = str(chosen.read_cached_address(folder))

    @cached_property
    def _files(self) -> SharedFiles:
        return chosen.open_shared_files(self.uri, self._folder)

    def fetch_array(self, file: Path) -> None:
        """Fetch an array and what lies beside it under its name, unless the file is there."""
        cache.mark_used(file.parent)
        name = self._name(file.with_suffix(""))
        named = None if file.exists() else self._files.find(name)
        if named is None:
            return
        files = named.reference.files
        beside = Reference(files={each: files[each] for each in files if each != file.name})
        with self._files.unless_damaged(name):
            for reference in (beside, named.reference):  # the array is the last
                self._files.fetch(reference, file.parent)

    def send_array(self, file: Path) -> None:
        """Send an array that is complete, and what lies beside it under its name."""
        name = file.with_suffix("")
        if not self._files.find(self._name(name)):
            self._send(name, file.parent, file.parent.glob(f"{file.stem}.*"))

    def fetch_file(self, file: Path) -> None:
        """Fetch a file that saves work, unless there is one; a store that is away has none."""
        with suppress(StorageError, DamagedObjectError):
            named = None if file.exists() else self._files.find(self._name(file))
            if named is not None:
                self._files.fetch(named.reference, file.parent)

    def send_file(self, file: Path) -> None:
        """Send a file that saves work; it replaces an earlier one."""
        with suppress(StorageError):
            self._send(file, file.parent, [file])

    def fetch_folder(self, folder: Path) -> None:
        """Fetch a folder, unless it is there."""
        cache.mark_used(folder)
        if not folder.exists():
            make_folder(folder.parent)
            self._files.fetch_folder(self._name(folder), folder)

    def send_folder(self, folder: Path) -> None:
        """Send a folder whose files are complete; it replaces an earlier one."""
        self._send(folder, folder, folder.rglob("*"))

    def send_checkpoint(self, folder: Path, step: int) -> None:
        """Send the checkpoint of a step, which is complete in the folder of a fit."""
        self._sender = self._sender or CheckpointSender(folder)
        self._sender.send(step)

    def finish_sending(self) -> None:
        """Send no more checkpoints than what is being sent: the results of the training follow."""
        if self._sender is not None:
            self._sender.finish()

    def read_content(self, sha256: str, start: int, stop: int) -> bytes | memoryview | None:
        """Return a range of what is stored under a digest; None if there is no such content."""
        return self._files.store.read_range(content_key(sha256), start, stop)

    def forget_content(self, sha256: str, name: str) -> str:
        """Delete what is stored under a digest, and a name for it; return what it was called."""
        key = content_key(sha256)
        self._files.remove(name)
        self._files.store.delete(key)
        return f"The object {key} in {self.uri}"

    def _send(self, path: Path, folder: Path, files: Iterable[Path]) -> None:
        """Let a path in the workspace stand for files of a folder; locks are of one machine."""
        kept = (each for each in files if each.is_file() and not each.name.startswith("."))
        names = sorted(each.relative_to(folder).as_posix() for each in kept)
        own = [each for each in names if not each.endswith(".lock")]
        self._files.publish(self._name(path), folder, own)

    def _name(self, path: Path) -> str:
        return path.resolve().relative_to(self._folder).as_posix()

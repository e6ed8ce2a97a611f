"""A workspace that machines share: a folder, and the object store that it is the cache of."""

from __future__ import annotations

import tempfile
from functools import cached_property
from pathlib import Path

from patchline.pipeline.files.atomic_files import storage_errors
from patchline.pipeline.files.workspace_folder import make_folder
from patchline.pipeline.workspace import cache, chosen
from patchline.pipeline.workspace.run_folders import CheckpointSender
from patchline.pipeline.workspace.shared_files import DamagedObjectError, SharedFiles, content_key
from patchline.pipeline.workspace.workspace import Workspace

_LOCK = ".lock"


class SharedWorkspace(Workspace):
    """Fetches what this machine lacks, and sends what others may need.

    Args:
        folder: the cache on this machine.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sender: CheckpointSender | None = None
        self.uri = str(chosen.cached_address(folder))

    @cached_property
    def _files(self) -> SharedFiles:
        return chosen.shared_at(self._folder)

    def fetch_array(self, file: Path) -> None:
        """Fetch an array and what lies beside it under its name, unless the file is there."""
        cache.mark_used(file.parent)
        name = self._name(file)
        named = None if file.exists() else self._files.find(name)
        if named is None:
            return
        make_folder(file.parent)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".building-") as part:
            try:
                self._files.fetch(named.reference, Path(part))
            except DamagedObjectError as reason:
                self._files.on_note(f"{name} in {self.uri} is not used: {reason}")
                return
            with storage_errors(file):
                fetched = sorted(Path(part).iterdir(), key=lambda each: each.name == file.name)
                for each in fetched:  # the array is the last
                    each.replace(file.parent / each.name)

    def send_array(self, file: Path) -> None:
        """Send an array that is complete, and what lies beside it under its name."""
        if self._files.find(name := self._name(file)):
            return
        beside = sorted(each.name for each in file.parent.glob(f"{file.stem}.*"))
        self._files.publish(
            name, file.parent, [each for each in beside if not each.endswith(_LOCK)]
        )

    def send_checkpoint(self, folder: Path, step: int) -> None:
        """Send the checkpoint of a step, which is complete in the folder of a training."""
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

    def _name(self, file: Path) -> str:
        return file.resolve().relative_to(self._folder).with_suffix("").as_posix()

"""What a stage needs of the workspace that its files lie in.

A workspace is a folder that keeps files for later runs. If machines share one, the folder is the
cache of an object store, which keeps them for all of them; what talks to the store is loaded by
name, so that the code of a stage depends on no store.
"""

from __future__ import annotations

import importlib
from pathlib import Path

CACHE_FILE = "cache_of.json"
"""In the folder of a workspace: which shared one it caches."""


class Workspace:
    """The workspace of one machine: what it keeps is where it was written.

    Attributes:
        uri: the address of a shared workspace; empty for that of one machine.
    """

    uri = ""

    def fetch_array(self, file: Path) -> None:
        """Fetch an array and what lies beside it under its name, unless the file is there.

        Raises:
            StorageError: if the store does not answer.
        """

    def send_array(self, file: Path) -> None:
        """Send an array that is complete, and what lies beside it under its name.

        Raises:
            StorageError: if the store does not take it.
        """

    def fetch_file(self, file: Path) -> None:
        """Fetch a file that saves work, unless there is one; a store that is away has none."""

    def send_file(self, file: Path) -> None:
        """Send a file that saves work; it replaces an earlier one.

        A store that does not take it is no error: others then do the work again.
        """

    def fetch_folder(self, folder: Path) -> None:
        """Fetch a folder, unless it is there.

        Raises:
            StorageError: if the store does not answer.
        """

    def send_folder(self, folder: Path) -> None:
        """Send a folder whose files are complete; it replaces an earlier one.

        Raises:
            StorageError: if the store does not take it.
        """

    def send_checkpoint(self, _folder: Path, _step: int) -> None:
        """Send the checkpoint of a step, which is complete in the folder of a fit.

        The training continues meanwhile, also if the store does not take it.
        """

    def finish_sending(self) -> None:
        """Send no more checkpoints than what is being sent: the results of the training follow."""

    def read_content(self, _sha256: str, _start: int, _stop: int) -> bytes | memoryview | None:
        """Return a range of what is stored under a digest; None if there is no such content.

        Raises:
            StorageError: if the store does not answer.
        """
        return None

    def forget_content(self, _sha256: str, _name: str) -> str:
        """Delete what is stored under a digest, and a name for it; return what it was called."""
        return ""


def workspace_of(path: Path) -> Workspace:
    """Return the workspace that a path lies in."""
    for folder in path.resolve().parents:
        if (folder / CACHE_FILE).is_file():
            name = "patchline.pipeline.workspace.shared_workspace"
            shared: Workspace = importlib.import_module(name).SharedWorkspace(folder)
            return shared
    return Workspace()

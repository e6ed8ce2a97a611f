"""One file that machines of a shared workspace read and replace: each sees what it replaces."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.atomic_files import replacing
from patchline.pipeline.workspace.files.file_digest import digest_of
from patchline.pipeline.workspace.shared_files import (
    DamagedObjectError,
    Named,
    Reference,
    SharedFiles,
)


class SharedFile:
    """A file of a shared workspace, from when it is fetched until it is replaced.

    Args:
        files: of the workspace.
        name: of the file: its path in the workspace.
    """

    def __init__(self, files: SharedFiles, name: str) -> None:
        self._files, self._name = files, name
        self._before: Named | None = None

    @property
    def is_missing(self) -> bool:
        """Whether the store had none when it was fetched: it was lost, or never there."""
        return self._before is None

    def fetch(self, file: Path) -> None:
        """Make a local file that of the store; if there is none, the local file stays.

        Raises:
            DataError: if what the store has is damaged; the local file is then as it was.
        """
        try:
            self._before = self._files.lasting(self._name)
            if self._before is None:
                return
            [digest] = self._before.reference.files.values()
            if file.is_file() and digest_of(file) == digest:
                self._files.uploaded(file.parent, {file.name: digest})  # if it was damaged there
            else:
                with replacing(file) as part:
                    self._files.fetch(Reference(files={part.name: digest}), part.parent)
        except DamagedObjectError as error:
            raise DataError(
                f"{self._name} in {self._files.uri} cannot be used: {error}. Run once on a machine "
                "whose folder .patchline still has the file, or restore the object from a backup."
            ) from error

    def replace(self, file: Path) -> None:
        """Let the store have the content of a local file.

        Raises:
            ConflictError: if another machine has replaced what was fetched.
            StorageError: if the store does not take it.
        """
        name = self._name.rpartition("/")[2]
        digest = digest_of(file)
        self._files.uploaded(file.parent, {file.name: digest})
        self._files.replace(self._name, Reference(files={name: digest}), self._before)

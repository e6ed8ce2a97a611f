"""The results of stages of earlier runs, also those of other machines that share the workspace.

A record also goes to the store, with its files, under the same name; another machine that has no
such record fetches both. A record of this machine that the store does not have, because the store
could not be reached at the time, is sent when it is used.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace import cache
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.pipeline.workspace.files.paths import safe_join
from patchline.pipeline.workspace.files.workspace_folder import RUNS
from patchline.pipeline.workspace.run_memory.stage_memory import (
    Ingredients,
    Result,
    StageMemory,
    StageRecord,
    UntrustedError,
    absolute,
    key_of,
    source_of,
    verify,
)
from patchline.pipeline.workspace.shared_files import DamagedObjectError, Reference, SharedFiles


@dataclass
class SharedStageMemory(StageMemory):
    """The records of a workspace that machines may share, as used by one run."""

    shared: SharedFiles | None = None
    """The results of other machines; None if the workspace is that of the folder alone."""

    def recall(
        self,
        stage: str,
        ingredients: Ingredients,
        result_class: type[Result],
        target: Path | None = None,
        *,
        own_only: bool = False,
    ) -> Result | None:
        """Return the result that this machine knows, or else that of another one, or None."""
        recalled = super().recall(stage, ingredients, result_class, target, own_only=own_only)
        if recalled is not None or self.shared is None:
            return recalled
        key, own_only = key_of(stage, ingredients), own_only or self.fresh
        for file in self._records(stage, key, own_only=own_only):
            named = self.shared.find(self._name(file))
            if named is None:
                continue
            try:
                record = StageRecord.model_validate(
                    {**named.reference.value, "files": named.reference.files}
                )
                if record.key != key or key_of(record.stage, record.ingredients) != key:
                    continue
                files = target.resolve() if target else self._place_of(record)
                _fetch_files(self.shared, record, files)
                content = absolute(record.result, files, source_of(record))
                result = result_class.model_validate(content)
                self._check_places(result)
            except (UntrustedError, DamagedObjectError, ValidationError) as reason:
                self.on_note(f"a result in {self.shared.uri} is not used: {reason}")
                continue
            record = record.model_copy(update={"folder": files})
            self._write(record)
            self._note_recalled(record)
            return result
        return None

    def _place_of(self, record: StageRecord) -> Path:
        """Return the folder of a record of the store, for a result that all runs share.

        Raises:
            DataError: if it lies outside the workspace.
            UntrustedError: if it holds other results, which the files would replace.
        """
        path = record.folder.as_posix()
        place = safe_join(self.workspace.resolve(), path, source_of(record))
        if record.files and (record.folder.parts[0] == RUNS or len(record.folder.parts) == 1):
            raise UntrustedError(f"{path} is no folder of its own")
        return place

    def _check_places(self, result: FrozenModel) -> None:
        """Raise `UntrustedError` if a result of the store names a place outside the workspace.

        It is a place of another machine, or a file of this one that the run would use, or send to
        MLflow, as its own.
        """
        for path in _paths(dict(result)):
            if not Path(os.path.normpath(path)).is_relative_to(self.workspace.resolve()):
                raise UntrustedError(f"it names {path}, which is outside the workspace")

    def _note_recalled(self, record: StageRecord) -> None:
        cache.mark_used(record.folder)
        super()._note_recalled(record)

    def _send(self, record: StageRecord, *, if_missing: bool = False) -> None:
        """Send a record and its files to the store of a shared workspace.

        Args:
            record: the record to send, which is of this machine.
            if_missing: whether only to make up for what the store does not have.
        """
        if self.shared is None:
            return
        folder = record.folder.relative_to(self.workspace.resolve()).as_posix()
        value = {**record.model_dump(mode="json", exclude={"files"}), "folder": folder}
        for file in self._records(record.stage, record.key, own_only=self.private):
            name = self._name(file)
            if not (if_missing and self.shared.find(name)):
                self.shared.publish(name, record.folder, record.files, value)

    def _name(self, file: Path) -> str:
        """Return the name of a record in the store: its path in the workspace."""
        path = file.resolve().relative_to(self.workspace.resolve())
        return path.with_suffix("").as_posix()


def _fetch_files(shared: SharedFiles, record: StageRecord, target: Path) -> None:
    """Fetch the files of a record from the store; the folder is complete, or as it was.

    Raises:
        UntrustedError: if the record has files that are not there afterwards.
        DamagedObjectError: if a file is damaged.
    """
    if target.is_dir():  # such as a store that lost one of its files
        with contextlib.suppress(UntrustedError):
            verify(record, target)
            return
    with replace_file(target) as part:
        shared.fetch(Reference(files=record.files), part)


def _paths(value: Any) -> Iterator[Path]:
    """Yield the paths in a result."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, FrozenModel):
        yield from _paths(dict(value))
    elif isinstance(value, (dict, list, tuple)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _paths(inner)

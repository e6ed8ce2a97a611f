"""The results of stages of earlier runs, so that an unchanged stage is not computed again.

`.patchline/stages/STAGE/KEY.json` holds a record: the inputs of the stage in plain text (the key is
their digest), the result, and the digest of every file that the result refers to. A record
is only used after each of these files was found with its digest; a missing or damaged file makes
the stage run again. A run that uses a record takes the files into its own folder, so that the
folders of old runs may be deleted.

Records are written atomically. Two runs that write the same record write the same result; the later
record replaces the earlier one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace.files.atomic_files import replace_file, storage_errors
from patchline.pipeline.workspace.files.paths import map_texts, safe_join
from patchline.pipeline.workspace.files.sealed_files import FileDigest, digest_of
from patchline.pipeline.workspace.files.workspace_folder import make_folder

Result = TypeVar("Result", bound=FrozenModel)
Ingredients = Mapping[str, str]
"""What determines a result, as text: `training.epochs` -> `60`."""
OnNote = Callable[[str], None]

_FOLDER = "{folder}"
_KEY_DIGITS = 32
_APPENDED = {".jsonl", ".log"}
"""Files that grow in place: a hard link would grow with them."""
_NOT_KEPT = {"worker.log", "worker.lock"}


class StageRecord(FrozenModel):
    """One result of one stage."""

    stage: str
    key: str
    ingredients: dict[str, str]
    """Everything that determines the result."""
    run_id: str
    """The MLflow run that computed it."""
    made_at: str
    folder: Path
    """The folder with the files."""
    files: dict[str, FileDigest]
    """Digest and size of each file, by its path in the folder."""
    result: dict[str, Any]
    """Result as JSON; paths inside the folder begin with `{folder}`."""


@dataclass
class StageMemory:
    """The records of a workspace, as used by one run."""

    workspace: Path
    fresh: bool = False
    """Whether to use only results that this run has computed itself."""
    on_note: OnNote = lambda _: None
    """Called with a message when a record cannot be trusted."""
    run_id: str = ""
    run_folder: Path | None = None
    reused: dict[str, str] = field(default_factory=dict)
    """The id of the run whose result was reused, by stage."""
    recalled: set[str] = field(default_factory=set)
    """Stages that were not computed again: by another run, or before an interruption."""
    private: bool = False
    """Whether no other run may use the results, because its settings do not say how they came
    about."""

    def enter(self, run_id: str, folder: Path) -> None:
        """Set the current run; its results are recorded in its own folder, too."""
        self.run_id, self.run_folder = run_id, folder

    def recall(
        self,
        stage: str,
        ingredients: Ingredients,
        result_class: type[Result],
        target: Path | None = None,
        *,
        own_only: bool = False,
    ) -> Result | None:
        """Return the result of an earlier run with the same inputs, or None.

        Args:
            stage: the name of the stage.
            ingredients: everything that determines the result.
            result_class: the class of the result.
            target: the folder of this run that receives the files; None if the files stay where
                they are, because all runs share them.
            own_only: whether to use only what this run has computed itself.

        Raises:
            DataError: if a path in a record leads out of its folder.
        """
        key, own_only = key_of(stage, ingredients), own_only or self.fresh
        for file in self._records(stage, key, own_only=own_only):
            record = self._read(file, key)
            if record is None:
                continue
            try:
                files = _copy_files(record, target or record.folder)
                content = absolute(record.result, files, source_of(record))
                result = result_class.model_validate(content)
            except (UntrustedError, ValidationError) as reason:
                self._distrust(record, file, str(reason))
                continue
            if files != record.folder:
                record = record.model_copy(update={"folder": files})
                self._write(record)
            else:
                self._send(record, if_missing=True)
            self._note_recalled(record)
            return result
        return None

    def _note_recalled(self, record: StageRecord) -> None:
        self.recalled.add(record.stage)
        if record.run_id and record.run_id != self.run_id:
            self.reused[record.stage] = record.run_id

    def forget(self, stage: str) -> None:
        """Note that the result of a stage is computed, whatever was recalled."""
        self.recalled.discard(stage)
        self.reused.pop(stage, None)

    def once(
        self,
        stage: str,
        ingredients: Ingredients,
        result_class: type[Result],
        folder: Path,
        compute: Callable[[], Result],
    ) -> Result:
        """Return the result of a stage: an earlier one with the same inputs, or a new one.

        Args:
            stage: the name of the stage.
            ingredients: everything that determines the result.
            result_class: the class of the result.
            folder: the folder of this run for the files of the result.
            compute: a function that computes the result.
        """
        recalled = self.recall(stage, ingredients, result_class, folder)
        if recalled is not None:
            return recalled
        result = compute()
        self.remember(stage, result, folder, ingredients)
        return result

    def remember(self, stage: str, result: FrozenModel, folder: Path, *keys: Ingredients) -> None:
        """Record a result and the files of its folder, under each of the keys.

        Args:
            stage: the name of the stage.
            result: what the stage returned; paths inside the folder are stored relative to it.
            folder: the folder that holds every file that the result refers to.
            keys: the inputs; first those of this run, then others that lead to the same result.
        """
        folder = folder.resolve()
        files = {
            file.relative_to(folder).as_posix(): digest_of(file) for file in result_files(folder)
        }
        content = _relative(result.model_dump(mode="json"), folder)
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        records = [
            StageRecord(
                stage=stage,
                key=key_of(stage, ingredients),
                ingredients=dict(ingredients),
                run_id=self.run_id,
                made_at=now,
                folder=folder,
                files=files,
                result=content,
            )
            for ingredients in reversed(keys)
        ]
        for record in records:
            self._keep(record)
        for record in records:  # once all are kept here, so that a store that is away loses none
            self._send(record)

    def _records(self, stage: str, key: str, *, own_only: bool) -> Iterator[Path]:
        if self.run_folder is not None:
            yield self.run_folder / "stages" / f"{stage}.json"
        if not own_only:
            yield self.workspace / "stages" / stage / f"{key}.json"

    def _read(self, file: Path, key: str) -> StageRecord | None:
        try:
            record = StageRecord.from_file(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            self.on_note(f"the record {file.name} of an earlier run is damaged and is ignored")
            return None
        if key_of(record.stage, record.ingredients) != record.key:
            self.on_note(f"the record {file.name} of an earlier run was changed and is ignored")
            return None
        return record if record.key == key else None

    def _distrust(self, record: StageRecord, file: Path, reason: str) -> None:
        owner = f"run {record.run_id[:8]}" if record.run_id else "an earlier run"
        self.on_note(f"the result of {owner} is not used: {reason}")
        with storage_errors(file):
            file.unlink(missing_ok=True)

    def _write(self, record: StageRecord) -> None:
        self._keep(record)
        self._send(record)

    def _keep(self, record: StageRecord) -> None:
        for file in self._records(record.stage, record.key, own_only=self.private):
            record.to_file(file)

    def _send(self, record: StageRecord, *, if_missing: bool = False) -> None:
        """Let other machines have a record and its files."""


def key_of(stage: str, ingredients: Ingredients) -> str:
    """Return the digest of a stage's inputs: 32 hexadecimal digits."""
    text = json.dumps([stage, sorted(ingredients.items())], ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


def result_files(folder: Path) -> list[Path]:
    """Return the files of a folder that belong to the result, sorted."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(
        path for path in files if path.name not in _NOT_KEPT and not path.name.startswith(".")
    )


def source_of(record: StageRecord) -> str:
    """Return what an error calls a record."""
    return f"The recorded result of the stage {record.stage}"


class UntrustedError(Exception):
    """A file of a record is missing or has changed."""


def _copy_files(record: StageRecord, target: Path) -> Path:
    """Return `target` with verified copies or links of the record's files."""
    target = target.resolve()
    if target == record.folder:
        verify(record, target)
        return target
    with replace_file(target) as copied:
        for name in record.files:
            _link(record.folder / name, safe_join(copied, name, source_of(record)))
        make_folder(copied)
        verify(record, copied)
    return target


def _link(source: Path, copy: Path) -> None:
    make_folder(copy.parent)
    if not source.is_file():
        raise UntrustedError(f"{source.name} is missing")
    if source.suffix not in _APPENDED:
        with contextlib.suppress(OSError):  # another disk or one without links: copy instead
            os.link(source, copy)
            return
    shutil.copyfile(source, copy)


def verify(record: StageRecord, folder: Path) -> None:
    """Raise `UntrustedError` unless a folder has the files of a record, each with its digest."""
    for name, expected in record.files.items():
        file = folder / name
        if not file.is_file():
            raise UntrustedError(f"{name} is missing")
        if file.stat().st_size != expected.bytes or digest_of(file) != expected:
            raise UntrustedError(f"{name} is damaged")


def _relative(value: Any, folder: Path) -> Any:
    """Return a JSON value in which paths inside the folder are relative to it."""

    def change(text: str) -> str:
        is_inside = f"{text}{os.sep}".startswith(f"{folder}{os.sep}")
        return _FOLDER + text.removeprefix(str(folder)) if is_inside else text

    return map_texts(value, change)


def absolute(value: Any, folder: Path, source: str) -> Any:
    """Return a JSON value in which paths inside the folder are absolute.

    Raises:
        DataError: if one leads out of it.
    """

    def change(text: str) -> str:
        if text == _FOLDER:
            return str(folder)
        below = text.removeprefix(f"{_FOLDER}{os.sep}")
        return str(safe_join(folder, below, source)) if below != text else text

    return map_texts(value, change)

"""What a watch is: the folder, its name, the settings of its run, and what its last run covered."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import Field, ValidationError

from patchline.pipeline import config_files
from patchline.pipeline.config import NAME_RULE, RunConfig, is_name
from patchline.pipeline.data.config import DataConfig, source_of
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace import remote_data
from patchline.pipeline.workspace.address import check_spelling, of_path, parsed
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.folder_walk import DEFAULT_IGNORED, IgnoredFiles
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE

QUIET_SECONDS = 3.0
"""How long a folder must stay unchanged before a run starts, if files are in the same subfolders as
at the last run."""
NEW_FOLDERS_QUIET_SECONDS = 60.0
"""The same before the first run, and if files are in other subfolders. A class that is missing then
is missing from all versions of the model, as they have the same classes."""
_LONGEST_QUIET_SECONDS = 86_400.0


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


class WatchState(FrozenModel):
    """What the last run of a watch was started for, as stored in `.patchline/watches/`."""

    deployment_id: UUID
    folder: str
    settings: str
    """Digest of the run's settings."""
    digest: str
    """Digest of the folder."""
    files: int
    folders: str = ""
    """Digest of the subfolders that hold files; empty in a state of an earlier version."""
    starts: int
    """How many runs this watch has started."""
    flow_run_id: UUID
    at: str = Field(default_factory=_now)
    """When the run was started: ISO 8601, UTC."""


def state_file(name: str) -> Path:
    """Return the file that holds the state of a watch."""
    return WORKSPACE / "watches" / f"{name}.json"


def save_state(name: str, state: WatchState) -> None:
    """Store the state of a watch."""
    write_text(state_file(name), state.model_dump_json(indent=2))


def load_state(name: str, deployment_id: UUID) -> WatchState | None:
    """Return the state of a watch; none if the watch was removed and created again."""
    try:
        state = WatchState.model_validate_json(state_file(name).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None
    return state if state.deployment_id == deployment_id else None


def settings_digest(parameters: Mapping[str, Any]) -> str:
    """Return a digest of the parameters of a watch's run."""
    text = json.dumps(parameters, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def quiet_seconds(given: object, before: WatchState | None, folders: str) -> float:
    """Return how long a folder must stay unchanged before its content counts as complete.

    Args:
        given: the seconds that the user has set, if any.
        before: the state at the last run.
        folders: digest of the current subfolders that hold files.
    """
    if given is not None:
        return float(str(given))
    same = before is not None and before.folders == folders
    return QUIET_SECONDS if same else NEW_FOLDERS_QUIET_SECONDS


def checked_quiet_seconds(given: float | None) -> float | None:
    """Return how long a folder must stay unchanged, as the user has set it.

    Raises:
        ConfigError: unless it is from 0 to 86,400 seconds.
    """
    if given is not None and not 0 <= given <= _LONGEST_QUIET_SECONDS:
        raise ConfigError(
            f"--quiet-seconds is {given:g}, but must be from 0 to {_LONGEST_QUIET_SECONDS:g}, one "
            "day. Choose more seconds than a pause within a copy lasts."
        )
    return given


def quiet_words(given: float | None) -> str:
    """Return in a sentence how long a watch waits for a folder that changes."""
    waits = "Waits until nothing in it has changed for"
    if given is not None:
        return f"{waits} {given:g} s."
    same = f"{QUIET_SECONDS:g} s if its subfolders are those of the last run"
    return f"{waits} {NEW_FOLDERS_QUIET_SECONDS:g} s; {same}."


def ignored_files(parameters: Mapping[str, Any]) -> IgnoredFiles:
    """Return what tells which files a watch's run skips, from the parameters of that run."""
    try:
        return IgnoredFiles(tuple(map(str, parameters["config"]["data"]["ignore"])))
    except (KeyError, TypeError):  # parameters that somebody else has written
        return DEFAULT_IGNORED


def checked_folder(folder: Path) -> str:
    """Return the absolute path of a folder that can be watched, or its address.

    Raises:
        DataError: if there is no such folder.
        ConfigError: if the folder contains the working directory, where every run writes files; or
            if an address or its credentials are wrong.
        StorageError: if the object store does not answer.
    """
    address = of_path(folder)
    if address:
        if remote_data.kind(address) != "folder":
            raise DataError(
                f"{address} is a file, a table or shards, and only folders are watched. Give the "
                "folder that holds the class folders, or train on it with `patchline run`."
            )
        return str(parsed(address, "The folder"))
    folder = folder.expanduser()
    if not folder.exists():
        check_spelling(str(folder), "The folder")
        raise DataError(f"There is no folder {folder}. Check the path.")
    if not folder.is_dir():
        raise DataError(
            f"{folder} is a file, and only folders are watched. Give the folder that holds the "
            "class folders, or train on the file with `patchline run`."
        )
    folder = folder.resolve()
    if Path.cwd().resolve().is_relative_to(folder):
        raise ConfigError(
            f"{folder} contains the working directory, whose files change with every run. Watch a "
            "folder that holds only images, or work in another folder."
        )
    return str(folder)


def checked_name(folder: str, name: str | None) -> str:
    """Return the name of a watch; by default the folder's name, made valid.

    Raises:
        ConfigError: if the name contains characters that a name may not have.
    """
    if name is None:
        last = Path(folder).name
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", last).strip("-._")[:100] or "images"
    if not is_name(name):
        raise ConfigError(f"The watch's name is '{name}', but it {NAME_RULE}. Rename it.")
    return name


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def run_settings(folder: str, file: Path | None) -> tuple[RunConfig, list[str]]:
    """Return the checked settings of a watch's run, and notes about them for the user.

    The folder overrides the path in the file. A data source that the file chooses is kept; the
    default one reads no folder, so the source of what the folder holds replaces it, as in a run.

    Raises:
        ConfigError: if the file is missing or wrong.
        DataError: if there is nothing to train on.
        PluginError: if a plugin is unknown or broken.
    """
    from patchline.pipeline.data import ingestion

    given = config_files.read_settings(file) if file is not None else {}
    data = given.get("data")
    data = data if isinstance(data, dict) else {}
    flags: dict[str, Any] = {"data": {"path": folder}}
    if data.get("source", DataConfig().source) == DataConfig().source:
        flags["data"]["source"] = source_of(folder)
    merged = config_files.assemble(preset_name=None, file=file, flags=flags)
    notes = []
    own = data.get("path")
    if own is not None and str(own) != folder and _absolute(str(own)) != folder:
        notes.append(f"data.path in {file} is {data['path']}; the folder given here overrides it.")
    settings = config_files.validated(merged)
    ingestion.check_source(settings, WORKSPACE.resolve())
    return settings, notes

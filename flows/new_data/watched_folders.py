"""Check the watched folders, and start the run of one that has changed and settled.

The keeper of `patchline up` calls `look` every two seconds. The state of a watch is stored after
its run is started, and each start has its own idempotency key, so a kill in between neither loses a
change nor starts a run twice. A killed run is resumed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import Field

from patchline.flows.notifications import events
from patchline.pipeline import config_files
from patchline.pipeline.config import NAME_RULE, RunConfig, is_name
from patchline.pipeline.data.config import DataConfig, source_of
from patchline.pipeline.errors import ConfigError, DataError, PipelineError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace import remote_data
from patchline.pipeline.workspace.address import check_spelling, is_of_store, of_path, parse_address
from patchline.pipeline.workspace.files.folder_walk import DEFAULT_IGNORED, IgnoredFiles, walk_files
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE

if TYPE_CHECKING:
    from prefect.client.schemas.responses import DeploymentResponse


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
    state.to_file(state_file(name))


def load_state(name: str, deployment_id: UUID) -> WatchState | None:
    """Return the state of a watch; none if the watch was removed and created again."""
    state = WatchState.from_file_or_none(state_file(name))
    return state if state and state.deployment_id == deployment_id else None


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


def check_quiet_seconds(given: float | None) -> float | None:
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


def check_min_new_images(given: int | None, file: Path | None) -> int:
    """Return how many images must be new: as given, or as a config of an earlier version says.

    Raises:
        ConfigError: unless it is at least 1.
    """
    if given is None:
        return former_min_new_images(config_files.read_settings(file) if file else {})
    if given < 1:
        raise ConfigError(f"--min-new-images is {given}, but must be at least 1. Choose 1 or more.")
    return given


def former_min_new_images(settings: Any) -> int:
    """Return `data.min_new_images`, which earlier versions had among the settings; else 1."""
    data = settings.get("data") if isinstance(settings, Mapping) else None
    value = data.get("min_new_images") if isinstance(data, Mapping) else None
    return value if isinstance(value, int) and value > 0 else 1


def quiet_words(given: float | None) -> str:
    """Return in a sentence how long a watch waits for a folder that changes."""
    waits = "Waits until nothing in it has changed for"
    if given is not None:
        return f"{waits} {given:g} s."
    same = f"{QUIET_SECONDS:g} s if its subfolders are those of the last run"
    return f"{waits} {NEW_FOLDERS_QUIET_SECONDS:g} s; {same}."


def read_ignored_files(parameters: Mapping[str, Any]) -> IgnoredFiles:
    """Return what tells which files a watch's run skips, from the parameters of that run."""
    try:
        return IgnoredFiles(tuple(map(str, parameters["config"]["data"]["ignore"])))
    except (KeyError, TypeError):  # parameters that somebody else has written
        return DEFAULT_IGNORED


def check_folder(folder: Path) -> str:
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
        return str(parse_address(address, "The folder"))
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


def check_name(folder: str, name: str | None) -> str:
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
    settings = config_files.validate_config(merged)
    ingestion.check_source(settings, WORKSPACE.resolve())
    return settings, notes


_UNFINISHED_SUFFIX = ".part"


@dataclass(frozen=True)
class Snapshot:
    """The state of a folder: a digest of paths, sizes and modification times, and a file count."""

    digest: str
    files: int
    folders: str
    """Digest of the paths of the subfolders that hold files."""


def snapshot(folder: Path | str, ignored: IgnoredFiles = DEFAULT_IGNORED) -> Snapshot:
    """Return the state of a folder without opening a file; linked folders are followed.

    Hidden files and folders are skipped, and so are files that end in `.part`.

    Args:
        folder: the folder, or an address on an object store.
        ignored: tells which other files and folders are skipped, as by a run on the folder.

    Raises:
        OSError: if the folder itself cannot be read.
        PipelineError: if the object store cannot be read.
    """
    if is_of_store(str(folder)):
        return _remote_snapshot(str(folder), ignored)
    files: list[tuple[str, int, int]] = []

    def note_unreadable(below: str, error: OSError) -> None:
        if not below:
            raise error
        files.append((f"{below}/", -1, -1))

    for path, entry in walk_files(Path(folder), note_unreadable, ignored):
        if entry.name.endswith(_UNFINISHED_SUFFIX):
            continue
        status = _status(entry)
        if status is not None:
            files.append((path, status.st_size, status.st_mtime_ns))
    digest = hashlib.sha256()
    for path, size, modified in sorted(files):
        digest.update(f"{path}\0{size}\0{modified}\n".encode("utf-8", "surrogateescape"))
    return Snapshot(digest.hexdigest(), len(files), _folders(path for path, _, _ in files))


def _remote_snapshot(address: str, ignored: IgnoredFiles) -> Snapshot:
    states = remote_data.states(address)
    names = ignored.remaining(
        [
            key
            for key in sorted(states)
            if not key.endswith(_UNFINISHED_SUFFIX)
            and not any(part.startswith(".") for part in key.split("/"))
        ]
    )
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{states[name]}\n".encode("utf-8", "surrogateescape"))
    return Snapshot(digest.hexdigest(), len(names), _folders(names))


def _folders(paths: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for folder in sorted({path.rpartition("/")[0] for path in paths}):
        digest.update(f"{folder}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of a file, or of the link itself if it is broken."""
    for follow in (True, False):
        with contextlib.suppress(OSError):
            return entry.stat(follow_symlinks=follow)
    return None  # deleted in the meantime


logger = logging.getLogger(__name__)

KIND = "watch"
_STORE_SECONDS = 30.0
"""How often a folder on an object store is listed, at most: each time costs requests."""
_CPU_SHARE = 0.05
"""At most this share of one core is spent on checking a folder."""


@dataclass
class _SeenFolder:
    """What this process remembers of a folder between two checks."""

    digest: str = ""
    since: float = 0.0
    waits: bool = False
    """Whether the log says that the folder has changed and its run waits."""
    not_before: float = 0.0
    trouble: str = ""
    settled: UUID | None = None
    """The run that was started for the stored state, if it needs no retry."""


_observations: dict[UUID, _SeenFolder] = {}


def check_folders() -> None:
    """Start the run of each watch whose folder has changed, once the folder has settled.

    While a run of the watch is active or waiting, none is started; the change is seen afterwards.

    Raises:
        OrchestrationError: if the Prefect server does not answer.
    """
    from patchline.flows.schedules.deployments import deployments

    active = [each for each in deployments(KIND) if not each.paused]
    for removed in _observations.keys() - {each.id for each in active}:
        del _observations[removed]
    for watch in active:
        _check_folder(watch, _observations.setdefault(watch.id, _SeenFolder()))


def cancel_waiting(deployment_id: UUID, own: UUID) -> None:
    """Cancel the waiting runs of a watch, because the run that starts now reads the same data.

    Call it before reading the data, so that a run requested later still waits and runs.
    """
    from patchline.flows.prefect_api.prefect_client import open_client
    from patchline.flows.schedules import deployments

    with open_client() as client:
        for flow_run in deployments.find_unfinished(client, deployment_id):
            if flow_run.id != own:
                reason = f"The run {own}, which starts now, reads the same data."
                deployments.cancel(client, flow_run, reason)


def _check_folder(watch: DeploymentResponse, observation: _SeenFolder) -> None:
    from patchline.flows.schedules.deployments import QUIET_SECONDS, WATCH_FOLDER, name_of

    folder, name = str(watch.labels[WATCH_FOLDER]), name_of(watch)
    began = time.monotonic()
    if began < observation.not_before:
        return
    try:
        now = snapshot(folder, read_ignored_files(watch.parameters))
    except (OSError, PipelineError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        trouble = f"The folder {folder} of the watch '{name}' cannot be read ({reason})."
        if observation.trouble != trouble:  # warn once
            observation.trouble = trouble
            logger.warning("%s No run is started until it can be read.", trouble)
        return
    finally:
        pause = (time.monotonic() - began) / _CPU_SHARE
        shortest = _STORE_SECONDS if is_of_store(folder) else 0.0
        observation.not_before = began + max(pause, shortest)
    if observation.trouble:
        logger.warning("The folder %s of the watch '%s' can be read again.", folder, name)
        observation.trouble = ""
    state = load_state(name, watch.id)
    settings = settings_digest(watch.parameters)
    if state is not None and (state.digest, state.settings) == (now.digest, settings):
        observation.digest, observation.waits = "", False  # a change may have been undone
        _retry_if_interrupted(observation, state.flow_run_id)
        return
    if observation.digest != now.digest:
        observation.digest, observation.since = now.digest, began
    quiet = quiet_seconds(watch.labels.get(QUIET_SECONDS), state, now.folders)
    if began - observation.since < quiet:
        if not observation.waits:
            observation.waits = True
            logger.info(
                "The folder %s of the watch '%s' has changed; its run waits until nothing has "
                "changed for %g s.",
                *(folder, name, quiet),
            )
        return
    if not _has_unfinished_run(watch.id):
        observation.waits = False
        _start(watch, name, folder, now, starts=1 + (state.starts if state else 0))


def _retry_if_interrupted(observation: _SeenFolder, flow_run_id: UUID) -> None:
    """Retry the run of the last change if it was interrupted.

    A run that failed is left alone: with the same images it would fail again.
    """
    from prefect.exceptions import ObjectNotFound

    from patchline.flows.prefect_api.failures import was_interrupted
    from patchline.flows.prefect_api.prefect_client import open_client
    from patchline.flows.schedules import deployments

    if observation.settled == flow_run_id:
        return
    with open_client() as client:
        try:
            over = deployments.retry_when_due(client, flow_run_id, was_interrupted)
        except ObjectNotFound:  # somebody deleted it
            over = True
    if over:
        observation.settled = flow_run_id


def _start(
    watch: DeploymentResponse, name: str, folder: str, now: Snapshot, *, starts: int
) -> None:
    from patchline.flows.schedules.deployments import start

    settings = settings_digest(watch.parameters)
    key = f"{watch.id}-{starts}-{now.digest[:16]}-{settings[:16]}"
    flow_run_id = start(watch.id, idempotency_key=key)
    state = WatchState(
        deployment_id=watch.id,
        folder=folder,
        settings=settings,
        digest=now.digest,
        files=now.files,
        folders=now.folders,
        starts=starts,
        flow_run_id=flow_run_id,
    )
    save_state(name, state)
    facts = {"name": name, "folder": folder, "files": now.files, "flow_run_id": flow_run_id}
    events.emit(events.DATA_CHANGED, f"patchline.watch.{name}", facts)
    logger.info("The folder %s of the watch '%s' has changed; started its run.", folder, name)


def _has_unfinished_run(deployment_id: UUID) -> bool:
    from patchline.flows.prefect_api.prefect_client import open_client
    from patchline.flows.schedules import deployments

    with open_client() as client:
        return bool(deployments.find_unfinished(client, deployment_id))

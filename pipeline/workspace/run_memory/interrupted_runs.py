"""Find an interrupted run, and what is needed to resume it."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError, RunError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.redaction import redact_text
from patchline.pipeline.terminal_words import few_names
from patchline.pipeline.workspace import chosen, run_folders
from patchline.pipeline.workspace.files.access import is_readable
from patchline.pipeline.workspace.files.file_locks import Liveness, is_held, try_lock
from patchline.pipeline.workspace.files.workspace_folder import REQUEST_FILE
from patchline.pipeline.workspace.tracking import liveness
from patchline.pipeline.workspace.tracking.tracked_run import (
    FLOW_RUN_TAG,
    FLOW_RUNS_TAG,
    FOLDER_TAG,
    HOST_TAG,
    not_resumable,
    owner_lock,
)
from patchline.pipeline.workspace.tracking.tracking_store import (
    all_runs,
    client,
    store_exists,
    use_store,
)

if TYPE_CHECKING:
    from mlflow.entities import Run

LAST = "last"
SUMMARY_FILE = "summary.json"
_RESUME_LOCK_FILE = "resume.lock"
_LOCK_SECONDS = 1.0
"""How long somebody who only looks at the lock may hold it."""
_ID = re.compile(r"[0-9a-f]{4,32}")


class RunRequest(FrozenModel):
    """The request for a run, resolved against its data."""

    config: RunConfig
    """Settings as they were before training, without what was chosen for this machine."""
    data_fingerprint: str
    plan: dict[str, Any] | None = None
    """What filled in the preset, if there was one: a `patchline.pipeline.planning.facts.Plan`."""
    plugin_files: tuple[str, ...] = ()
    fresh: bool = False
    """Whether the run may not use results of earlier runs."""
    code: str = ""
    """Digest of the code of its stages."""
    processes_before: tuple[int, ...] = ()
    """Numbers of processes that it was resumed from with another one, in their order."""


@dataclass(frozen=True)
class RunKind:
    """What is resumed: a training run, or what a tool makes of many."""

    command: str
    """Command that starts such a run; the source of its MLflow run."""
    request: type[RunRequest]


TRAINING = RunKind("patchline run", RunRequest)


@dataclass(frozen=True)
class InterruptedRun:
    """A run in the store, with the folder from which it can be resumed."""

    run_id: str
    folder: Path
    flow_runs: str
    """Ids of the flow runs that worked on it, separated by commas."""
    request: RunRequest
    owner: Liveness
    """What is known of the process that worked on it; DEAD if that has ended."""
    finished: bool = False


def find(
    reference: str,
    runs: Path,
    on_wait: Callable[[str], None] | None = None,
    kind: RunKind = TRAINING,
) -> InterruptedRun:
    """Return the run that a user names: by its id, the beginning of its id, its name, or `last`.

    Args:
        reference: what the user typed.
        runs: the folder with the folders of this workspace's runs.
        on_wait: called with a sentence before the heartbeat of a process that cannot be seen from
            here is observed, which takes a minute and a half.
        kind: the kind of run to find.

    Raises:
        ConfigError: if no run or several match, or if the run cannot be resumed.
    """
    run = find_named(reference, runs, kind)
    if run.info.status == "FINISHED":
        raise ConfigError(
            f"The run {run.info.run_id[:8]} ({run.info.run_name}) is FINISHED, so there is "
            "nothing to resume. Start a new run. (A run that was interrupted while reading the "
            "data leaves nothing to resume.)"
        )
    interrupted = _read_interrupted_run(run, runs, kind)
    owner = interrupted.owner
    if owner is Liveness.UNKNOWN:
        owner = liveness.observe_owner(
            lambda: client().get_run(run.info.run_id), _say(run, on_wait)
        )
    if owner is not Liveness.DEAD:
        raise ConfigError(not_resumable(run, owner))
    return interrupted


def with_processes(run: InterruptedRun, processes: int) -> InterruptedRun:
    """Return a run that is resumed with another number of processes; its request keeps it.

    Args:
        run: the training run, which nobody works on.
        processes: number of processes that train together.

    Raises:
        ConfigError: if the other settings do not allow so many.
        RunError: if another process resumes the run.
    """
    before = run.request.config.training.processes
    settings = {"training": {"processes": processes}}
    config = run.request.config.model_dump(mode="json")
    changes = {
        "config": config_files.validate_config(config_files.merge_settings(config, settings)),
        "processes_before": (*run.request.processes_before, before),
    }
    request = run.request.model_copy(update=changes)
    with resume_alone(run):
        request.to_file(run.folder / REQUEST_FILE)
        run_folders.send_file(run.folder / REQUEST_FILE)
    return replace(run, request=request)


def _say(run: Run, on_wait: Callable[[str], None] | None) -> Callable[[float], None]:
    host = run.data.tags.get(HOST_TAG, "")

    def say(seconds: float) -> None:
        if on_wait:
            on_wait(
                f"observing the heartbeat of run {run.info.run_id[:8]} for up to {seconds:.0f} s: "
                f"whether its process (machine {host}) has ended cannot be seen from here"
            )

    return say


@contextmanager
def resume_alone(run: InterruptedRun) -> Iterator[None]:
    """Resume a run in this process alone, from before its data is read until the block ends.

    Raises:
        RunError: if another process resumes it.
    """
    with try_lock(run.folder / _RESUME_LOCK_FILE, _LOCK_SECONDS) as is_alone:
        if not is_alone:
            raise RunError(not_resumable(client().get_run(run.run_id), Liveness.ALIVE))
        yield


def of_flow_run(flow_run_id: str, runs: Path, kind: RunKind = TRAINING) -> InterruptedRun | None:
    """Return the run that an earlier attempt at a Prefect flow run has opened, if any."""
    if not flow_run_id or not store_exists():
        return None
    for condition in (
        f"tags.`{FLOW_RUN_TAG}` = '{flow_run_id}'",
        f"tags.`{FLOW_RUNS_TAG}` LIKE '%{flow_run_id}%'",
    ):
        for run in all_runs(condition):
            if run.data.tags.get("mlflow.source.name") == kind.command:
                return _read_interrupted_run(run, runs, kind)
    return None


def find_named(reference: str, runs: Path, kind: RunKind = TRAINING) -> Run:
    """Return the run that a user names, whatever its status; see `find`.

    Raises:
        ConfigError: if no run or several match.
    """
    if reference == LAST:
        newest = _newest_in(runs.resolve(), kind)
        if newest is None:
            raise ConfigError(_why_none(runs.resolve(), kind))
        return newest
    named_so = _runs_of(kind, _comparison("attributes.run_name", "=", reference))
    matches = [run for run in named_so if run.info.run_name == reference]
    if not matches and _ID.fullmatch(reference):
        matches = list(_runs_of(kind, f"attributes.run_id LIKE '{reference}%'"))
    if not matches:
        raise ConfigError(
            _explain_deleted("", lambda run: reference in (run.info.run_id, run.info.run_name))
            or f"There is no run '{reference}' in the store of this folder, "
            f"{redact_text(use_store())}. Give a run's id, the beginning of its id, its name, or "
            f"`{LAST}`."
        )
    if len(matches) > 1:
        listed = few_names(run.info.run_id[:8] for run in matches)
        raise ConfigError(f"'{reference}' matches {len(matches)} runs: {listed}. Give an id.")
    return matches[0]


def _newest_in(folder: Path, kind: RunKind) -> Run | None:
    """Return the newest run whose folder lies in this one, whichever machine started it.

    The store may be that of many workspaces, so it is asked for this one's runs first. Runs of
    before a workspace was moved still name its earlier folder.
    """
    own = _comparison(f"tags.`{FOLDER_TAG}`", "LIKE", f"{folder}/%")
    if shared := chosen.address():
        own = _comparison(f"tags.`{liveness.WORKSPACE_TAG}`", "=", str(shared))
    for condition in (own, ""):
        for run in _runs_of(kind, condition):
            if liveness.folder_of(run).parent == folder:
                return run
    return None


def _why_none(runs: Path, kind: RunKind) -> str:
    """Return why the store has no run of this folder: there is none, or it was deleted there."""
    folders = sorted(each for each in runs.glob("*") if (each / REQUEST_FILE).exists())
    if not folders:
        return f"This folder has no run yet. Start one with `{kind.command}`."
    if kind is not TRAINING:
        return f"This folder has no run of `{kind.command}` yet. Start one with it."
    last = folders[-1]
    condition = _comparison(f"tags.`{FOLDER_TAG}`", "LIKE", f"%{last.name}")
    deleted = _explain_deleted(condition, lambda run: liveness.folder_of(run) == last)
    return deleted or (
        f"The last run of this folder, {last.name}, is not in the MLflow store "
        f"{redact_text(use_store())}. Set MLFLOW_TRACKING_URI to the store that it was recorded "
        "in, or start a new run."
    )


def _explain_deleted(condition: str, is_it: Callable[[Run], bool]) -> str:
    """Return that a run was deleted in MLflow, and how it is restored; empty if none is it."""
    from mlflow.entities import ViewType

    if not store_exists():
        return ""
    store = client()
    experiments = {each.experiment_id: each for each in store.search_experiments(ViewType.ALL)}
    for run in store.search_runs([*experiments], condition, ViewType.ALL):
        if is_it(run):
            id_, experiment = run.info.run_id, experiments[run.info.experiment_id]
            how, restore = "", f"runs restore --run-id {id_}"
            if experiment.lifecycle_stage == "deleted":  # which deletes its runs, too
                how = f" with its experiment {experiment.name}"
                restore = f"experiments restore --experiment-id {experiment.experiment_id}"
            return (
                f"The run {id_[:8]} ({run.info.run_name}) was deleted in MLflow{how}. Restore it "
                f"with `MLFLOW_TRACKING_URI={redact_text(use_store())} mlflow {restore}`, or start "
                "a new run."
            )
    return ""


def _runs_of(kind: RunKind, condition: str = "") -> Iterator[Run]:
    """Yield the runs of a kind in the store for which a condition holds, the newest first."""
    if store_exists():
        and_more = f" AND {condition}" if condition else ""
        yield from all_runs(f"tags.`mlflow.source.name` = '{kind.command}'{and_more}")


def _comparison(what: str, operator: str, value: str) -> str:
    """Return a condition; with a value of both kinds of quotes, which a filter cannot hold, none.

    A path with `_` or `%` matches others as well, so callers compare again.
    """
    quote = '"' if "'" in value else "'"
    return "" if quote in value else f"{what} {operator} {quote}{value}{quote}"


def _read_interrupted_run(run: Run, runs: Path, kind: RunKind) -> InterruptedRun:
    tags, run_id = run.data.tags, run.info.run_id
    folder = liveness.folder_of(run)
    host = tags.get(HOST_TAG, "")
    if folder.parent == runs.resolve():
        run_folders.fetch(folder)
    if not is_readable(folder / REQUEST_FILE):
        raise ConfigError(
            f"The folder {folder} of the run {run_id[:8]} {_why_unreadable(folder, host)}, so the "
            "run cannot be resumed here. Start a new run with its settings: `mlflow artifacts "
            f"download --run-id {run_id} --artifact-path config.yaml --dst-path .`, then "
            f"`{kind.command} --config config.yaml`."
        )
    if folder.parent != runs.resolve():
        raise ConfigError(
            f"The run {run_id[:8]} belongs to the folder {folder.parents[2]}. Resume it there."
        )
    try:
        request = kind.request.from_file(folder / REQUEST_FILE)
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"{folder / REQUEST_FILE} cannot be read, so the run {run_id[:8]} cannot be resumed. "
            "Start a new run."
        ) from error
    flow_runs = tags.get(FLOW_RUNS_TAG) or tags.get(FLOW_RUN_TAG, "")
    finished = run.info.status == "FINISHED"
    return InterruptedRun(run_id, folder, flow_runs, request, _owner(run, folder), finished)


def _owner(run: Run, folder: Path) -> Liveness:
    """Return what is known about the process that worked on a run."""
    if is_held(folder / _RESUME_LOCK_FILE, liveness.CHECK_SECONDS):
        return Liveness.ALIVE
    if run.info.status == "RUNNING":
        return liveness.of_run(run)
    still_held = is_held(owner_lock(folder), liveness.CHECK_SECONDS)
    return Liveness.ALIVE if still_held else Liveness.DEAD


def _why_unreadable(folder: Path, host: str) -> str:
    try:
        folder.stat()
    except PermissionError:
        return "belongs to another user of this machine, who does not share it"
    except OSError:
        if host != socket.gethostname():
            return f"is on the machine {host}"
        return "does not exist here: it was deleted, or it is in another container"
    return f"has no {REQUEST_FILE} that may be read"

"""Runs that are nested in MLflow under another, such as the folds of a run.

A key tells the runs of one parent apart. The run of a key is opened once: a process that resumes
the parent continues it, whatever has become of the process that opened it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.config import RunConfig
from patchline.pipeline.workspace.tracking import liveness, tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import NewRun, TrackedRun
from patchline.pipeline.workspace.tracking.tracking_store import all_runs, client

PARENT_TAG, FOLD_TAG = "mlflow.parentRunId", "patchline.fold"
KEY_TAG = "patchline.nested"
"""The key of a nested run among those of its parent."""
FINAL = "final "
"""Beginning of the key of a run that may make a version; such runs are whole training runs."""
_FOLDS = "folds"


class NestedRun(NamedTuple):
    """A run among those of its parent."""

    key: str
    """Text that tells it apart, such as `2` for fold 2."""
    folder: str
    """Folder of the runs of its kind, in the parent's folder."""
    command: str
    """Source of the run; only whole runs can be resumed or reproduced."""
    experiment: str
    name: str


def find_finished_fold(parent: TrackedRun, fold: int) -> TrackedRun | None:
    """Return the run of a fold that has finished, or None."""
    return find_finished(parent, str(fold), FOLD_TAG, parent.folder / _FOLDS)


@contextmanager
def fold_run(parent: TrackedRun, fold: int, folds: int, config: RunConfig) -> Iterator[TrackedRun]:
    """Open the run of a fold, or reopen the one that was interrupted.

    Args:
        parent: the run that it is nested in.
        fold: number of the fold, from 1.
        folds: number of folds.
        config: the settings of the fold.
    """
    new = NestedRun(
        key=str(fold),
        folder=_FOLDS,
        command="patchline run (fold)",
        experiment=str(config.name),
        name=f"fold {fold} of {folds}",
    )
    with open_nested_run(parent, new, config, tag=FOLD_TAG) as run:
        yield run


@contextmanager
def open_nested_run(
    parent: TrackedRun, new: NestedRun, config: RunConfig, *, tag: str = KEY_TAG
) -> Iterator[TrackedRun]:
    """Open a nested run, or reopen the one that was interrupted.

    Args:
        parent: the run that it is nested in.
        new: the run to open.
        config: the settings of the nested run.
        tag: the tag that holds the key of the nested run.
    """
    runs, params = parent.folder / new.folder, config.flat()
    unfinished = [
        run for run, status in _earlier_runs(parent, new.key, tag, runs) if status != "FINISHED"
    ]
    if unfinished:
        same = unfinished[0]
        with tracked_run.continue_run(same.run_id, same.folder, params, {}, nested=True) as run:
            yield run
        return
    opened = NewRun(
        experiment=new.experiment,
        name=new.name,
        command=new.command,
        params=params,
        tags={PARENT_TAG: parent.run_id, tag: new.key},
    )
    with tracked_run.open_run(opened, runs) as run:
        yield run


def nest(run: TrackedRun, parent_run_id: str) -> None:
    """Nest an open run in another one; if that is in another store, it stays where it is.

    Args:
        run: the run to nest, which is open.
        parent_run_id: id of the other run.
    """
    from mlflow.exceptions import MlflowException

    try:
        client().get_run(parent_run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return
    tracked_run.set_tags(run, {PARENT_TAG: parent_run_id})


def statuses(parent: TrackedRun) -> dict[str, set[str]]:
    """Return the statuses of the nested runs of each key."""
    found: dict[str, set[str]] = {}
    for run in all_runs(f"tags.`{PARENT_TAG}` = '{parent.run_id}'"):
        found.setdefault(run.data.tags.get(KEY_TAG, ""), set()).add(run.info.status)
    return found


def find_finished(parent: TrackedRun, key: str, tag: str, runs: Path) -> TrackedRun | None:
    """Return the nested run of a key that has finished, or None.

    Args:
        parent: the run that it is nested in.
        key: the key of the nested run, which tells it apart.
        tag: the tag that holds the key.
        runs: the folder with the folders of the runs of its kind.
    """
    earlier = _earlier_runs(parent, key, tag, runs)
    return next((run for run, status in earlier if status == "FINISHED"), None)


def _earlier_runs(
    parent: TrackedRun, key: str, tag: str, runs: Path
) -> Iterator[tuple[TrackedRun, str]]:
    """Yield the runs of a key whose folders exist, with their status, the newest first."""
    condition = f"tags.`{PARENT_TAG}` = '{parent.run_id}' AND tags.`{tag}` = '{key}'"
    for run in all_runs(condition):
        folder = liveness.folder_of(run)
        if folder.is_dir() and folder.parent == runs:
            tracked = TrackedRun(run.info.run_id, run.info.experiment_id, folder, continued=True)
            yield tracked, run.info.status

"""The runs of the folds of a cross-validation, nested in MLflow under their run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from patchline.pipeline.config import RunConfig
from patchline.pipeline.tracking import liveness, tracked_run
from patchline.pipeline.tracking.tracked_run import NewRun, TrackedRun
from patchline.pipeline.tracking.tracking_store import all_runs

PARENT_TAG, FOLD_TAG = "mlflow.parentRunId", "patchline.fold"
_COMMAND = "patchline run (fold)"
"""The source of a nested run; only whole runs can be resumed or reproduced."""


def finished_fold(parent: TrackedRun, fold: int) -> TrackedRun | None:
    """Return the run of a fold that has finished, or None."""
    return next((run for run, status in _earlier_runs(parent, fold) if status == "FINISHED"), None)


@contextmanager
def fold_run(parent: TrackedRun, fold: int, folds: int, config: RunConfig) -> Iterator[TrackedRun]:
    """Open the run of a fold, or reopen the one that was interrupted.

    Args:
        parent: the run that it is nested in.
        fold: counted from 1.
        folds: number of folds.
        config: the settings of the fold.
    """
    unfinished = [run for run, status in _earlier_runs(parent, fold) if status != "FINISHED"]
    if unfinished:
        same = unfinished[0]
        settings = config.flat()
        with tracked_run.continued_run(same.run_id, same.folder, settings, {}, nested=True) as run:
            yield run
        return
    new = NewRun(
        experiment=str(config.name),
        name=f"fold {fold} of {folds}",
        command=_COMMAND,
        params=config.flat(),
        tags={PARENT_TAG: parent.run_id, FOLD_TAG: str(fold)},
    )
    with tracked_run.open_run(new, parent.folder / "folds") as run:
        yield run


def _earlier_runs(parent: TrackedRun, fold: int) -> Iterator[tuple[TrackedRun, str]]:
    """Yield the runs of a fold whose folders exist, with their status, the newest first."""
    condition = f"tags.`{PARENT_TAG}` = '{parent.run_id}' AND tags.`{FOLD_TAG}` = '{fold}'"
    for run in all_runs(condition):
        folder = liveness.folder_of(run)
        if folder.is_dir() and folder.parent == parent.folder / "folds":
            tracked = TrackedRun(run.info.run_id, run.info.experiment_id, folder, continued=True)
            yield tracked, run.info.status

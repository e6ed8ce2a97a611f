"""The folders of the best weights so far: those of the last checkpoint, and possibly newer ones.

A checkpoint names the step of the best weights. Newer weights must not replace them before the next
checkpoint is complete: training that resumes from the old checkpoint may take other steps under a
time limit and never reach the newer weights again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

FINAL = "best"


def folder_of(job_folder: Path, step: int) -> Path:
    """Return the folder of a step's weights during training."""
    return job_folder / f"{FINAL}-{step}"


def keep_only(job_folder: Path, *steps: int | None) -> None:
    """Delete the weights of all other steps."""
    kept = {folder_of(job_folder, step) for step in steps if step is not None}
    for folder in job_folder.glob(f"{FINAL}-*"):
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def finish(job_folder: Path, step: int) -> Path:
    """Move the weights of a step to their final folder, and return it."""
    final = job_folder / FINAL
    shutil.rmtree(final, ignore_errors=True)
    return folder_of(job_folder, step).rename(final)


def take_back(job_folder: Path, step: int) -> None:
    """Undo `finish` for a training run that was killed right after it."""
    folder, final = folder_of(job_folder, step), job_folder / FINAL
    if final.exists() and not folder.exists():
        final.rename(folder)

"""The folders of the best weights so far: the last checkpoint's, and perhaps a newer one.

A checkpoint names the step of the best weights. A newer best must not replace them before the next
checkpoint is whole: a training that goes on from the old one may, under a time limit, take another
way and never reach the newer best again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

_FINAL = "best"


def folder_of(job_folder: Path, step: int) -> Path:
    """Return where the weights of a step are kept while the training goes on."""
    return job_folder / f"{_FINAL}-{step}"


def keep_only(job_folder: Path, *steps: int | None) -> None:
    """Delete the weights of all other steps: neither the newest nor named by a checkpoint."""
    kept = {folder_of(job_folder, step) for step in steps if step is not None}
    for folder in job_folder.glob(f"{_FINAL}-*"):
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def finish(job_folder: Path, step: int) -> Path:
    """Give the weights of a step their final name, and return it."""
    final = job_folder / _FINAL
    shutil.rmtree(final, ignore_errors=True)
    return folder_of(job_folder, step).rename(final)


def take_back(job_folder: Path, step: int) -> None:
    """Undo `finish` of a training that was killed right after it."""
    folder, final = folder_of(job_folder, step), job_folder / _FINAL
    if final.exists() and not folder.exists():
        final.rename(folder)

"""The images that a teacher predicts: rows of manifests, and which machines can read them."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pandas as pd

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.training.distillation.job import ImagesToTeach, TeachingJob
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.missing_data import missing_data, stays_here
from patchline.pipeline.workers.worker_parts import write_lines
from patchline.pipeline.workers.worker_start import LocalLauncher
from patchline.pipeline.workspace import remote_data

LIST_FILE = "images.jsonl"


def rows_of(images: ImagesToTeach) -> pd.DataFrame:
    """Return the rows of the manifest that the teacher predicts."""
    rows = manifests.usable(manifests.load(images.manifest_file))
    return rows[rows["split"].isin(images.splits)]


def write_list(job: TeachingJob, folder: Path) -> None:
    """Write the absolute paths of all images if some roots are the folder of several buckets.

    Such a root is no address whose objects another machine could list.
    """
    (folder / LIST_FILE).unlink(missing_ok=True)
    if any(remote_data.is_above_buckets(each.root) for each in job.images):
        lines = (
            [os.fspath(each.root.resolve() / path)]
            for each in job.images
            for path in rows_of(each)["path"]
        )
        write_lines(folder / LIST_FILE, lines)


def launcher_for(job: TeachingJob) -> AbstractContextManager[Any]:
    """Return a block in which workers start where the images can be read.

    Raises:
        DataError: if that is this machine alone, and the teacher needs a GPU of another one.
    """
    here = [each.root for each in job.images if stays_here(each.root, rows_of(each)["path"])]
    if here and job.device != "cpu":
        raise missing_data(here[0].absolute())
    return worker_start.using_launcher("images here", LocalLauncher) if here else nullcontext()

"""The process in which a teacher predicts: its input, the images, their views, and its result."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd

from patchline.pipeline.data.ingested_data import SeenBefore
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.job_paths import SAME_PLACE
from patchline.pipeline.workers.missing_data import missing_data, stays_here
from patchline.pipeline.workers.worker_parts import write_lines
from patchline.pipeline.workers.worker_process import Worker
from patchline.pipeline.workers.worker_start import LocalLauncher
from patchline.pipeline.workspace import remote_data

_CROP = 7 / 8


class View(NamedTuple):
    """A part of the image, as fractions of its sides, and whether it is mirrored."""

    top: float = 0.0
    left: float = 0.0
    side: float = 1.0
    mirrored: bool = False


_REST = 1 - _CROP
VIEWS = (
    View(),
    View(mirrored=True),
    View(0, 0, _CROP),
    View(_REST, _REST, _CROP),
    View(0, _REST, _CROP),
    View(_REST, 0, _CROP),
)
"""In the order in which they are taken: crops lie in the corners, as much of an image as the usual
augmentation keeps at least."""


def views_of(count: int, *, mirrored: bool) -> tuple[View, ...]:
    """Return the first views; without mirror images, one less where there is one among them."""
    return tuple(view for view in VIEWS[:count] if mirrored or not view.mirrored)


class ImagesToTeach(FrozenModel):
    """Images of a manifest."""

    manifest_file: Path
    root: Annotated[Path, SAME_PLACE]
    """What the manifest's paths are relative to."""
    splits: tuple[str, ...]


class TeachingJob(FrozenModel):
    """Which images a teacher predicts, and how."""

    teacher: Path
    """Folder of its model."""
    name: str
    sha256: str
    """Of its weights."""
    classes: tuple[str, ...]
    """Of the run."""
    task: Task = SINGLE_LABEL
    """Of the run and its teacher."""
    images: tuple[ImagesToTeach, ...]
    """The labelled images, then the unlabelled ones."""
    views: int
    mirrored: bool
    """Whether a mirrored image still shows its class."""
    device: str
    threads: int | None
    workspace: Path


class Taught(FrozenModel):
    """What a teacher has predicted for the images that a run trains on."""

    file: Path
    """Logits, float32 (M, V * K): images, views, classes of the run."""
    splits: tuple[str, ...]
    """Of the labelled images; the unlabelled ones follow them."""
    labelled: int
    unlabelled: int
    """Number of images."""
    views: int
    """Number of views of each image."""
    task: Task = SINGLE_LABEL
    agreement: float
    """Fraction of the labelled images for which the teacher predicts the label; of sets of labels,
    the mAP of its predictions of these images."""
    images_per_second: float = 0.0
    """Of those that were predicted now; 0 if all were stored."""

    @property
    def images(self) -> int:
        """Number of all images."""
        return self.labelled + self.unlabelled

    def share_in_targets(self, weight: float) -> str:
        """Return what its predictions are for the training, as a clause.

        Args:
            weight: share of the teacher in the target of a labelled image.
        """
        labelled = counted(self.labelled, "labelled image")
        words = f"its predictions are {weight:.0%} of the targets of {labelled}"
        if self.unlabelled:
            words += f", and the targets of {counted(self.unlabelled, 'unlabelled image')}"
        return f"{words}; {self._agrees}"

    @property
    def _agrees(self) -> str:
        """How far the teacher and the labels agree, as a clause."""
        if self.task == MULTI_LABEL:
            return f"its mAP on the labelled ones is {self.agreement:.1%}"
        return f"it predicts the label of {self.agreement:.1%} of the labelled ones"

    def sentence(self, before: SeenBefore) -> str:
        """Return how many images the teacher has predicted, and how far it agrees with the labels.

        Args:
            before: what it has seen of the data; it may have been trained on the labels.
        """
        further = f" and {self.unlabelled:,} without labels" if self.unlabelled else ""
        views = f", in {self.views} views each" if self.views > 1 else ""
        own = ""
        if before.trained:
            own = f" ({before.trained:,} of which were used to train {before.weights})"
        elif not before.provenance.is_known:
            own = " (whether it was trained on these is not known)"
        labelled = counted(self.labelled, "labelled image")
        return f"the teacher has predicted {labelled}{further}{views}; {self._agrees}{own}"


TEACHING = Worker("patchline.pipeline.training.distillation", TeachingJob, Taught)
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

"""The process in which a teacher predicts: its input, the images, their views, and its result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd

from patchline.pipeline.data.ingested_data import SeenBefore
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task, by_task
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import by_number, counted, few_names
from patchline.pipeline.training.recipe.soft_targets import TEACHER_WEIGHT
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.job_paths import SAME_PLACE
from patchline.pipeline.workers.missing_data import missing_data, stays_here
from patchline.pipeline.workers.worker_parts import write_lines
from patchline.pipeline.workers.worker_process import Worker
from patchline.pipeline.workers.worker_start import LocalLauncher
from patchline.pipeline.workspace import remote_data


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
    """SHA-256 of its weights."""
    classes: tuple[str, ...]
    """Classes of the run, in their order."""
    task: Task = SINGLE_LABEL
    """Task of the run and of its teacher."""
    images: tuple[ImagesToTeach, ...]
    """The labelled images, then the unlabelled ones."""
    mirrored: bool
    """Whether a mirrored image still shows its class, so that it is predicted too."""
    device: str
    threads: int | None
    workspace: Path


class Taught(FrozenModel):
    """What a teacher has predicted for the images that a run trains on."""

    file: Path
    """Logits, float32 (M, V * K): images, views, classes of the run."""
    splits: tuple[str, ...]
    """Splits of the labelled images; the unlabelled ones follow them."""
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
    """Rate of the predictions that were made now; 0 if all were stored."""

    @property
    def images(self) -> int:
        """Number of all images."""
        return self.labelled + self.unlabelled

    @property
    def share_in_targets(self) -> str:
        """What its predictions are for the training, as a clause."""
        labelled = counted(self.labelled, "labelled image")
        words = f"its predictions are {TEACHER_WEIGHT:.0%} of the targets of {labelled}"
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
            before: what the teacher has seen of the data; it may have been trained on the labels.
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
    return worker_start.use_launcher("images here", LocalLauncher) if here else nullcontext()


class ClassColumns(NamedTuple):
    """The outputs of a teacher that are the classes of the data, in the data's order."""

    columns: tuple[int, ...]
    left_out: tuple[str, ...]
    """Classes that only the teacher knows."""

    def note(self, task: Task = SINGLE_LABEL) -> str:
        """Say what becomes of classes that only the teacher knows; empty if there are none."""
        if not self.left_out:
            return ""
        words, count = by_task(task), len(self.left_out)
        scaled = (
            f", and its probabilities of the other {len(self.columns)} are scaled to add up to 1"
        )
        return (
            f"the teacher knows {counted(count, words.one, words.several)} that the data "
            f"does not have ({few_names(self.left_out, 3)}): "
            f"{by_number(count, 'it is', 'they are')} left out"
            f"{scaled if task == SINGLE_LABEL else ''}"
        )


def class_columns(
    name: str, of_teacher: Sequence[str], classes: Sequence[str], task: Task = SINGLE_LABEL
) -> ClassColumns:
    """Return which outputs of a teacher are the classes of the data.

    Args:
        name: the teacher's name, for errors.
        of_teacher: the teacher's classes, in the order of its outputs.
        classes: the classes of the data, in their order.
        task: the task of the data: one label for each image, or a set of labels.

    Raises:
        ConfigError: if the teacher does not know a class of the data: its probability could only be
            0, and every image of it would be labelled as something else.
    """
    place = {label: number for number, label in enumerate(of_teacher)}
    missing = [label for label in classes if label not in place]
    if missing:
        words = by_task(task)
        raise ConfigError(
            f"training.teacher {name} does not know "
            f"{counted(len(missing), words.one, words.several)} of the data: "
            f"{few_names(missing, 3)}; it knows {few_names(of_teacher, 3)}. Name a teacher that "
            f"was trained on the same {words.several}, or rename the {words.several}."
        )
    known = set(classes)
    return ClassColumns(
        tuple(place[label] for label in classes),
        tuple(label for label in of_teacher if label not in known),
    )

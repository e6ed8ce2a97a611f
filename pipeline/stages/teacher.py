"""Find the teacher of a run, if it names one, and let it predict the images to train on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import UNLABELLED, IngestedData
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.data.seen_images import describe_seen_images, with_seen_images
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.training.distillation.job import (
    TEACHING,
    ImagesToTeach,
    Taught,
    TeachingJob,
    class_columns,
    launcher_for,
    write_list,
)
from patchline.pipeline.training.distillation.teacher import (
    Teacher,
    check_teacher,
    find_seen_before,
    teacher_for,
    with_teacher,
)
from patchline.pipeline.training.initial_weights.starting_point import StartingPoint
from patchline.pipeline.training.machine import choose_device, detect_cached_machine
from patchline.pipeline.workers.launcher import Resources
from patchline.pipeline.workspace.files.workspace_folder import PREDICTIONS
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


@dataclass(frozen=True)
class FindTeacher(Stage[Teacher]):
    """Leaves the teacher.

    Finding it again is fast, so the result is not remembered.
    """

    name = "teacher"
    task = "Find the teacher"
    output = Teacher

    data: IngestedData
    start: StartingPoint | None

    @staticmethod
    def applies(config: RunConfig) -> bool:
        """Return whether the settings name a teacher."""
        return bool(config.training.teacher)

    @staticmethod
    def check(config: RunConfig, workspace: Path) -> str:
        """Find a teacher that is a file or published."""
        check_teacher(config, workspace)
        return ""

    def title(self) -> str:
        """Return what is sought."""
        return f"Finding the teacher ({self.config.training.teacher})"

    def task_run(self) -> str:
        """Return what is sought."""
        return f"Find the teacher {self.config.training.teacher}"

    def compute(self) -> Teacher:
        """Find it, and refuse one that does not know a class of the data."""
        return teacher_for(self.config, self.data, self.context.workspace)

    def after(self, result: Teacher) -> None:
        """Show what it is; the data then tells what it has seen of it, and the settings keep it."""
        data = self.data
        columns = class_columns(result.name, result.classes, data.classes)
        self.context.reporting.note(f"teacher: {result.described()}")
        if columns.left_out:
            self.context.reporting.note(columns.note(data.task))
        before = find_seen_before(result, self.start, data, self.context.workspace)
        for sentence in describe_seen_images(before, data.counts):
            self.context.reporting.note(sentence)
        self.context.put(with_seen_images(data, before))
        self.context.config = with_teacher(self.config, result)

    def tags(self, result: Teacher) -> dict[str, str]:
        """Return which model it is."""
        found = {tracked_run.TEACHER_TAG: result.reference}
        return {**found, tracked_run.TEACHER_RUN_TAG: result.run_id} if result.run_id else found


@dataclass(frozen=True)
class Teach(Stage[Taught]):
    """Leaves the teacher's predictions, which all runs with the same images and teacher share."""

    name = "teach"
    task = "Predict with the teacher"
    output = Taught
    worker = TEACHING
    code = TEACHING.code
    shared = True
    rehearsal = "Predicting two batches with the teacher"

    data: IngestedData
    teacher: Teacher | None
    run: TrackedRun

    @staticmethod
    def applies(config: RunConfig) -> bool:
        """Return whether there is a teacher."""
        return bool(config.training.teacher)

    def title(self) -> str:
        """Return who predicts, and how many images."""
        return f"Predicting {self._count():,} images with {self._teacher().name}"

    def task_run(self) -> str:
        """Return how many images are predicted."""
        return f"Predict {self._count():,} images with the teacher"

    def key(self) -> Ingredients:
        """Return everything that determines the predictions."""
        data, job = self.data, self._job()
        further = {UNLABELLED: data.unlabelled.fingerprint} if data.unlabelled else {}
        return {
            "data": data.fingerprint,
            **further,
            "splits": ", ".join(job.images[0].splits),
            "classes": repr(job.classes),
            "teacher": job.sha256,
            "mirrored": str(job.mirrored),
            "device": job.device,
            "threads": str(job.threads),
            "code": stage_keys.code(*self.code),
            **stage_keys.package_versions(),
        }

    def folder(self, result: Taught | None) -> Path:
        """Return the folder of the predictions; before it is known, that of all."""
        return result.file.parent if result else self.context.memory.workspace / PREDICTIONS

    def compute(self) -> Taught:
        """Predict what is not stored yet, in a worker process."""
        folder = self.run.folder / "teaching"
        job = self._job()
        write_list(job, folder)
        resources = Resources.for_device(self.config.training.device)
        with launcher_for(job):
            return TEACHING.run(folder, job, self.context.reporting.event, resources)

    def reuse(self) -> str:
        """Return what is used again."""
        return "the teacher's predictions are used again"

    def after(self, result: Taught) -> None:
        """Say how far the teacher and the labels agree; the data then tells who taught."""
        data = self.data
        self.context.reporting.note(result.sentence(data.seen_before))
        taught_by = f"{self._teacher().described()}: {result.share_in_targets}"
        self.context.put(data.model_copy(update={"taught_by": taught_by}))

    def tags(self, result: Taught) -> dict[str, str]:
        """Return how many images the teacher has predicted."""
        measure = "map" if result.task == MULTI_LABEL else "agreement"
        return {
            "training.teacher_images": str(result.images),
            "training.teacher_unlabelled": str(result.unlabelled),
            f"training.teacher_{measure}": f"{result.agreement:.4f}",
        }

    def _teacher(self) -> Teacher:
        if self.teacher is None:
            raise TypeError("A run with a teacher has not found it.")
        return self.teacher

    def _splits(self) -> tuple[str, ...]:
        """Return the splits that a fit of the run trains on."""
        return ("train", "validation") if self.config.training.is_repeated else ("train",)

    def _count(self) -> int:
        counts = self.data.counts
        return sum(counts[split] for split in self._splits()) + counts.get(UNLABELLED, 0)

    def _job(self) -> TeachingJob:
        config, data, teacher = self.config, self.data, self._teacher()
        images = [(data.manifest_file, data.root, self._splits())]
        if further := data.unlabelled:
            images.append((further.manifest_file, further.root, (UNLABELLED,)))
        return TeachingJob(
            teacher=teacher.folder.resolve(),
            name=teacher.name,
            sha256=teacher.sha256,
            classes=data.classes,
            task=data.task,
            images=tuple(
                ImagesToTeach(manifest_file=file.resolve(), root=root, splits=splits)
                for file, root, splits in images
            ),
            mirrored=data.mirror.is_symmetric,
            device=choose_device(config.training, detect_cached_machine()),
            threads=config.training.threads,
            workspace=self.context.memory.workspace.resolve(),
        )

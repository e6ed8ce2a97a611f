"""Find the teacher of a run, if it names one, and let it predict the images to train on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import UNLABELLED, IngestedData
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.data.seen_images import seen_images_notes, with_seen_images
from patchline.pipeline.stages.stage import Context, Stage
from patchline.pipeline.training.distillation.class_columns import class_columns
from patchline.pipeline.training.distillation.job import (
    TEACHING,
    ImagesToTeach,
    Taught,
    TeachingJob,
)
from patchline.pipeline.training.distillation.teacher import (
    Teacher,
    check_teacher,
    seen_before,
    teacher_for,
    with_teacher,
)
from patchline.pipeline.training.initial_weights.starting_point import StartingPoint
from patchline.pipeline.training.machine import cached_machine, choose_device
from patchline.pipeline.workers.launcher import Resources
from patchline.pipeline.workspace.files.workspace_folder import PREDICTIONS
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


@dataclass(frozen=True)
class TeacherInputs:
    """The images, of which the teacher may have seen some, as the initial weights may have."""

    data: IngestedData
    start: StartingPoint | None


class FindTeacher(Stage[TeacherInputs, Teacher]):
    """Leaves the teacher.

    Finding it again is fast, so the result is not remembered.
    """

    name = "teacher"
    task = "Find the teacher"
    reads = TeacherInputs
    output = Teacher

    def applies(self, config: RunConfig) -> bool:
        """Return whether the settings name a teacher."""
        return bool(config.training.teacher)

    def check(self, config: RunConfig, workspace: Path) -> str:
        """Find a teacher that is a file or published."""
        check_teacher(config, workspace)
        return ""

    def title(self, context: Context, inputs: TeacherInputs) -> str:
        """Return what is sought."""
        return f"Finding the teacher ({context.config.training.teacher})"

    def task_run(self, context: Context, inputs: TeacherInputs) -> str:
        """Return what is sought."""
        return f"Find the teacher {context.config.training.teacher}"

    def compute(self, context: Context, inputs: TeacherInputs) -> Teacher:
        """Find it, and refuse one that does not know a class of the data."""
        return teacher_for(context.config, inputs.data, context.workspace)

    def after(self, context: Context, inputs: TeacherInputs, result: Teacher) -> None:
        """Show what it is; the data then tells what it has seen of it, and the settings keep it."""
        data = inputs.data
        columns = class_columns(result.name, result.classes, data.classes)
        context.reporting.note(f"teacher: {result.described()}")
        if columns.left_out:
            context.reporting.note(columns.note(data.task))
        before = seen_before(result, inputs.start, data, context.workspace)
        for sentence in seen_images_notes(before, data.counts):
            context.reporting.note(sentence)
        context.put(with_seen_images(data, before))
        context.config = with_teacher(context.config, result)

    def tags(self, context: Context, inputs: TeacherInputs, result: Teacher) -> dict[str, str]:
        """Return which model it is."""
        found = {tracked_run.TEACHER_TAG: result.reference}
        return {**found, tracked_run.TEACHER_RUN_TAG: result.run_id} if result.run_id else found


FIND_TEACHER = FindTeacher()


@dataclass(frozen=True)
class TeachInputs:
    """The teacher, and the images; validation and test images are not among those it predicts."""

    data: IngestedData
    teacher: Teacher | None
    run: TrackedRun


class Teach(Stage[TeachInputs, Taught]):
    """Leaves the teacher's predictions, which all runs with the same images and teacher share."""

    name = "teach"
    task = "Predict with the teacher"
    reads = TeachInputs
    output = Taught
    worker = TEACHING
    code = TEACHING.code
    shared = True
    rehearsal = "Predicting two batches with the teacher"

    def applies(self, config: RunConfig) -> bool:
        """Return whether there is a teacher."""
        return bool(config.training.teacher)

    def title(self, context: Context, inputs: TeachInputs) -> str:
        """Return who predicts, and how many images."""
        teacher = _teacher(inputs)
        return f"Predicting {_count(context.config, inputs.data):,} images with {teacher.name}"

    def task_run(self, context: Context, inputs: TeachInputs) -> str:
        """Return how many images are predicted."""
        return f"Predict {_count(context.config, inputs.data):,} images with the teacher"

    def key(self, context: Context, inputs: TeachInputs) -> Ingredients:
        """Return everything that determines the predictions."""
        data, job = inputs.data, _job(context, inputs)
        further = {UNLABELLED: data.unlabelled.fingerprint} if data.unlabelled else {}
        return {
            "data": data.fingerprint,
            **further,
            "splits": ", ".join(job.images[0].splits),
            "classes": repr(job.classes),
            "teacher": job.sha256,
            "views": f"{job.views}, {'mirrored' if job.mirrored else 'not mirrored'}",
            "device": job.device,
            "threads": str(job.threads),
            "code": stage_keys.code(*self.code),
            **stage_keys.package_versions(),
        }

    def folder(self, context: Context, inputs: TeachInputs, result: Taught | None) -> Path:
        """Return the folder of the predictions; before it is known, that of all."""
        return result.file.parent if result else context.memory.workspace / PREDICTIONS

    def compute(self, context: Context, inputs: TeachInputs) -> Taught:
        """Predict what is not stored yet, in a worker process."""
        from patchline.pipeline.training.distillation.job import launcher_for, write_list

        folder = inputs.run.folder / "teaching"
        job = _job(context, inputs)
        write_list(job, folder)
        resources = Resources.for_device(context.config.training.device)
        with launcher_for(job):
            return TEACHING.run(folder, job, context.reporting.event, resources)

    def reuse(self, config: RunConfig) -> str:
        """Return what is used again."""
        return "the teacher's predictions are used again"

    def after(self, context: Context, inputs: TeachInputs, result: Taught) -> None:
        """Say how far the teacher and the labels agree; the data then tells who taught."""
        data, weight = inputs.data, context.config.training.teacher_weight
        context.reporting.note(result.sentence(data.seen_before))
        taught_by = f"{_teacher(inputs).described()}: {result.share_in_targets(weight)}"
        context.put(data.model_copy(update={"taught_by": taught_by}))

    def tags(self, context: Context, inputs: TeachInputs, result: Taught) -> dict[str, str]:
        """Return how many images the teacher has predicted."""
        measure = "map" if result.task == MULTI_LABEL else "agreement"
        return {
            "training.teacher_images": str(result.images),
            "training.teacher_unlabelled": str(result.unlabelled),
            f"training.teacher_{measure}": f"{result.agreement:.4f}",
        }


def _teacher(inputs: TeachInputs) -> Teacher:
    if inputs.teacher is None:
        raise TypeError("A run with a teacher has not found it.")
    return inputs.teacher


def _splits(config: RunConfig) -> tuple[str, ...]:
    """Return the splits that a fit of the run trains on."""
    several = config.training.folds or config.training.refit
    return ("train", "validation") if several else ("train",)


def _count(config: RunConfig, data: IngestedData) -> int:
    return sum(data.counts[split] for split in _splits(config)) + data.counts.get(UNLABELLED, 0)


def _job(context: Context, inputs: TeachInputs) -> TeachingJob:
    config, data, teacher = context.config, inputs.data, _teacher(inputs)
    images = [
        ImagesToTeach(
            manifest_file=data.manifest_file.resolve(),
            root=data.root,
            splits=_splits(config),
        )
    ]
    if further := data.unlabelled:
        images.append(
            ImagesToTeach(
                manifest_file=further.manifest_file.resolve(),
                root=further.root,
                splits=(UNLABELLED,),
            )
        )
    return TeachingJob(
        teacher=teacher.folder.resolve(),
        name=teacher.name,
        sha256=teacher.sha256,
        classes=data.classes,
        task=data.task,
        images=tuple(images),
        views=config.training.teacher_views,
        mirrored=data.mirror.is_symmetric,
        device=choose_device(config.training, cached_machine()),
        threads=config.training.threads,
        workspace=context.memory.workspace.resolve(),
    )


TEACH = Teach()

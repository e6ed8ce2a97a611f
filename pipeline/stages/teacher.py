"""Find the teacher of a run, if it names one, and compare its classes with those of the data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.seen_images import seen_images_notes, with_seen_images
from patchline.pipeline.stages.context import Context
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.training.distillation.class_columns import class_columns
from patchline.pipeline.training.distillation.finding_teacher import (
    seen_before,
    teacher_for,
    with_teacher,
)
from patchline.pipeline.training.distillation.teacher import Teacher, check_teacher
from patchline.pipeline.training.initial_weights.starting_point import StartingPoint
from patchline.pipeline.workspace.tracking import tracked_run


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

"""The teacher of a run: found, compared with the data, and recorded in the settings."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData, SeenBefore
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.seen_images import count_seen_images
from patchline.pipeline.models.provenance.provenance import together
from patchline.pipeline.training.distillation.class_columns import class_columns
from patchline.pipeline.training.distillation.teacher import Teacher, check_task, find_teacher
from patchline.pipeline.training.initial_weights.record import stored_provenance, weights_folder
from patchline.pipeline.training.initial_weights.starting_point import StartingPoint


def teacher_for(config: RunConfig, data: IngestedData, workspace: Path) -> Teacher:
    """Return the teacher that a config names, which knows all classes of the data.

    Raises:
        ConfigError: if there is no such model, it is of another task, or does not know a class.
    """
    teacher = find_teacher(config, workspace)
    check_task(teacher, data.task)
    class_columns(teacher.name, teacher.classes, data.classes, data.task)
    rows = manifests.usable(manifests.load(data.manifest_file))
    own = manifests.contents_fingerprint(rows[rows["split"] == "test"])
    known = bool(teacher.test_images)
    return teacher.model_copy(
        update={"same_test_images": teacher.test_images == own if known else None}
    )


def seen_before(
    teacher: Teacher, start: StartingPoint | None, data: IngestedData, workspace: Path
) -> SeenBefore:
    """Return what the teacher, and the initial weights if there are some, have seen of the data."""
    provenance, weights = teacher.provenance, "the teacher"
    if start is not None and start.weights is not None:
        initial = stored_provenance(weights_folder(workspace, start.weights.sha256))
        provenance = together([initial, provenance])
        weights = "the initial weights or the teacher"
    return count_seen_images(data.manifest_file, provenance, weights)


def with_teacher(config: RunConfig, teacher: Teacher) -> RunConfig:
    """Return the config with the very teacher that was found, so that it can be repeated."""
    training = config.training.model_copy(update={"teacher": teacher.reference})
    record = config.record.model_copy(update={"teacher_sha256": teacher.sha256})
    return config.model_copy(update={"training": training, "record": record})

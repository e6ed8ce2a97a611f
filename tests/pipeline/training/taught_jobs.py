"""A fit with a teacher and unlabelled images, and one that needs no labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.provenance.provenance import Provenance
from patchline.pipeline.provenance.seen_images import SeenImages
from patchline.pipeline.training.job import TeacherPredictions, TrainingJob
from patchline.pipeline.training.start.initial_model import description_of
from tests.conftest import write_photos
from tests.pipeline.training.trained_jobs import Make, opened

MAE: dict[str, Any] = {
    "objective": {"name": "mae", "decoder_depth": 1},
    "training": {"epochs": 2},
    "model": {"patch_embedding": {"patch_size": 4}},
}
FURTHER = 24
FAVOURITE = 2
"""The class that the teacher sees in every image."""


def unlabelled(folder: Path) -> Path:
    """Return a folder of 24 photos of another class than those of other jobs."""
    root = write_photos(folder / "more", classes=4, images=FURTHER, side=16)
    return root / "falling"


def taught(make: Make, folder: Path, **changes: Any) -> TrainingJob:
    """Return a small job with a teacher that sees its favourite class everywhere."""
    settings = {"teacher": "photos/1", "teacher_weight": 1.0, **changes.pop("training", {})}
    data = {"unlabelled": str(unlabelled(folder))}
    job = make("run", data=data, training=settings, **changes)
    rows = manifests.usable(manifests.load(job.manifest_file))
    count = int((rows["split"] == "train").sum()) + FURTHER
    logits = np.tile(np.array([0.0, 0.0, 4.0], np.float32), (count, 2))
    np.save(folder / "logits.npy", logits)
    plain = job.model_copy(update={"unlabelled": None, "folder": folder / "plain"})
    seen = SeenImages.of(rows[rows["split"] == "test"], rows.iloc[:0])
    model = opened(plain).state.model
    save_model(folder / "teacher", model, description_of(job), Provenance(seen))
    teacher = TeacherPredictions(
        file=folder / "logits.npy",
        splits=("train",),
        weights=folder / "teacher" / WEIGHTS_FILE,
        name="photos/1",
    )
    return job.model_copy(update={"teacher": teacher})

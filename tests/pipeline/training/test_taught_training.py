"""Training towards a teacher's predictions, with unlabelled images, through the ordinary loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.models.model_files import load_model, save_model
from patchline.pipeline.provenance.provenance import Provenance
from patchline.pipeline.provenance.seen_images import SeenImages
from patchline.pipeline.training.job import TeacherPredictions, TrainingJob
from patchline.pipeline.training.job_provenance import provenance_of_job
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.part import TrainingPart
from patchline.pipeline.training.start.initial_model import description_of, initial_model
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.training.training_data import open_data
from patchline.pipeline.workers.event_log import EventWriter
from tests.conftest import write_photos
from tests.pipeline.training.conftest import MakeJob

FURTHER = 24
FAVOURITE = 2
"""The class that the teacher of these tests sees in every image."""


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of 24 other photos."""
    root = write_photos(tmp_path_factory.mktemp("more") / "all", images=60, side=16)
    folder = root.parent / "unlabelled"
    folder.mkdir()
    for number in range(FURTHER):
        label, variant = number % 3, 24 + number
        path = sorted(root.iterdir())[label]
        (path / f"{variant:03}.png").rename(folder / f"{number:03}.png")
    return folder


def taught(make_job: MakeJob, folder: Path, unlabelled: Path, **changes: Any) -> TrainingJob:
    """Return a small job with a teacher that sees its favourite class everywhere."""
    settings = {"teacher": "photos/1", "teacher_weight": 1.0, **changes.pop("training", {})}
    data = {"unlabelled": str(unlabelled)}
    job = make_job(folder / "run", data=data, training=settings, **changes)
    rows = manifests.usable(manifests.load(job.manifest_file))
    count = int((rows["split"] == "train").sum()) + FURTHER
    logits = np.tile(np.array([0.0, 0.0, 4.0], np.float32), (count, 2))
    np.save(folder / "logits.npy", logits)
    plain = job.model_copy(update={"unlabelled": None})
    model = initial_model(plain, open_data(plain), EventWriter(folder / "unused.jsonl"))
    seen = SeenImages.of(rows[rows["split"] == "test"], rows.iloc[:0])
    save_model(folder / "teacher", model, description_of(job), Provenance(seen))
    teacher = TeacherPredictions(
        file=folder / "logits.npy",
        splits=("train",),
        weights=folder / "teacher" / WEIGHTS_FILE,
        name="photos/1",
    )
    return job.model_copy(update={"teacher": teacher})


class _Stop(Exception):  # noqa: N818 - stands for a kill, not for an error
    """Ends a training run in the middle of a step's report."""


class _StoppingWriter(EventWriter):
    def progress(self, done: int, total: int, unit: str, **values: object) -> None:
        super().progress(done, total, unit, **values)  # type: ignore[arg-type]  # as the loop passes them
        if done == 9:
            raise _Stop


def trained(job: TrainingJob, events: EventWriter | None = None) -> TrainResult:
    """Train to the end."""
    return Training(job, events or EventWriter(job.folder / "events.jsonl")).run()


def test_unlabelled_images_are_in_every_epoch(
    make_job: MakeJob, tmp_path: Path, unlabelled: Path
) -> None:
    """Beside the training images, or those of a fold; never among those to validate on."""
    job = taught(make_job, tmp_path, unlabelled)
    rows = manifests.usable(manifests.load(job.manifest_file))
    further = np.arange(len(rows), len(rows) + FURTHER)
    for part in (TrainingPart(), TrainingPart(fold=1, folds=3), TrainingPart(refit=True)):
        data = open_data(job.model_copy(update={"part": part}))
        labelled, _ = part.rows(rows, job.config.data.split_seed)
        assert data.training.rows.tolist() == [*labelled, *further]
        assert not set(data.validation_rows) & set(further)
        assert len(data.labels) == len(data.paths) == len(data.images) == len(rows) + FURTHER
        assert set(data.labels[further]) == {FAVOURITE}
    targets = open_data(job).training.targets
    validation = np.flatnonzero(rows["split"] == "validation")[:1]
    assert targets[further[:1]].argmax() == FAVOURITE
    label = job.classes.index(rows["label"].iloc[validation[0]])
    assert targets[validation].argmax() == label  # the teacher has not seen it


def test_it_learns_what_the_teacher_says(
    make_job: MakeJob, tmp_path: Path, unlabelled: Path
) -> None:
    """With its full weight, a teacher that sees one class everywhere is believed."""
    job = taught(make_job, tmp_path, unlabelled, training={"mixup": 0.2, "cutmix": 1.0})
    result = trained(job)
    assert np.isfinite(result.history[-1].train_loss)
    model, data = load_model(result.best)[0], open_data(job)
    device = torch.device("cpu")
    logits = predict_logits(model, data.images, data.validation_rows, job.image, device=device)
    assert (logits.argmax(1) == FAVOURITE).float().mean() > 0.9


def test_a_stopped_training_resumes_to_the_same_weights(
    make_job: MakeJob, tmp_path: Path, unlabelled: Path
) -> None:
    """To the bit, as without a teacher; another teacher leads to other weights."""
    folders = [tmp_path / name for name in ("whole", "stopped", "other")]
    for folder in folders:
        folder.mkdir()
    whole, stopped, other = (taught(make_job, folder, unlabelled) for folder in folders)
    np.save(folders[2] / "logits.npy", -np.load(folders[2] / "logits.npy"))
    trained(whole)
    with pytest.raises(_Stop):
        trained(stopped, _StoppingWriter(stopped.folder / "events.jsonl"))
    trained(stopped)
    trained(other)
    first, second, third = (
        load_file(job.folder / "last.safetensors") for job in (whole, stopped, other)
    )
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert not all(torch.equal(tensor, third[name]) for name, tensor in first.items())


def test_a_student_has_seen_the_unlabelled_images_and_what_its_teacher_has(
    make_job: MakeJob, tmp_path: Path, unlabelled: Path
) -> None:
    """What a teacher knows of test images, it passes on."""
    job = taught(make_job, tmp_path, unlabelled)
    rows = manifests.usable(manifests.load(job.manifest_file))
    assert job.unlabelled is not None
    further = manifests.usable(manifests.load(job.unlabelled.manifest_file))
    known = provenance_of_job(job)
    assert known.own.contain(further, trained_only=True).all()
    shares = pd.Series(known.images.contain(rows)).groupby(rows["split"]).mean()
    assert shares.to_dict() == {"train": 1.0, "validation": 1.0, "test": 1.0}
    alone = provenance_of_job(job.model_copy(update={"teacher": None}))
    assert not alone.images.contain(rows[rows["split"] == "test"]).any()


def test_pre_training_takes_unlabelled_images_as_they_are(
    make_job: MakeJob, tmp_path: Path, unlabelled: Path
) -> None:
    """Without labels, they are training images like all others."""
    mae = {"name": "mae", "decoder_depth": 1}
    model = {"patch_embedding": {"patch_size": 4}}
    settings: dict[str, Any] = {"objective": mae, "model": model, "training": {"epochs": 1}}
    alone = make_job(tmp_path / "alone", **settings)
    more = make_job(tmp_path / "more", data={"unlabelled": str(unlabelled)}, **settings)
    counts = [len(open_data(job).training.rows) for job in (alone, more)]
    assert counts[1] == counts[0] + FURTHER
    assert trained(more).steps > 0

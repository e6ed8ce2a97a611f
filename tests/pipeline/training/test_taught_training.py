"""Training towards a teacher's predictions, with unlabelled images, through the ordinary loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.training.job_provenance import provenance_of_job
from patchline.pipeline.training.part import TrainingPart
from patchline.pipeline.training.training_data import open_data
from tests.pipeline.training.taught_jobs import FAVOURITE, FURTHER, taught
from tests.pipeline.training.trained_jobs import Make, trained


def test_unlabelled_images_are_in_every_epoch(make: Make, tmp_path: Path) -> None:
    """Beside the training images, or those of a fold; never among those to validate on."""
    job = taught(make, tmp_path)
    rows = manifests.usable(manifests.load(job.manifest_file))
    further = np.arange(len(rows), len(rows) + FURTHER)
    for part in (TrainingPart(), TrainingPart(fold=1, folds=3), TrainingPart(refit=True)):
        data = open_data(job.model_copy(update={"part": part}))
        labelled, _ = part.rows(rows, job.config.data.split_seed)
        assert data.training.rows.tolist() == [*labelled, *further]
        assert not set(data.validation_rows) & set(further)
        assert set(data.labels[further]) == {FAVOURITE}
    targets = open_data(job).training.targets
    validation = np.flatnonzero(rows["split"] == "validation")[:1]
    assert targets[further[:1]].argmax() == FAVOURITE
    label = job.classes.index(rows["label"].iloc[validation[0]])
    assert targets[validation].argmax() == label  # the teacher has not seen it


def test_it_learns_what_the_teacher_says(make: Make, tmp_path: Path) -> None:
    """With its full weight, a teacher that sees one class everywhere is believed."""
    job = taught(make, tmp_path, training={"mixup": 0.2, "cutmix": 1.0})
    model, data = load_model(trained(job).best)[0], open_data(job)
    device = torch.device("cpu")
    logits = predict_logits(model, data.images, data.validation_rows, job.image, device=device)
    assert (logits.argmax(1) == FAVOURITE).float().mean() > 0.9


def test_a_student_has_seen_the_unlabelled_images_and_what_its_teacher_has(
    make: Make, tmp_path: Path
) -> None:
    """What a teacher knows of test images, it passes on."""
    job = taught(make, tmp_path)
    rows = manifests.usable(manifests.load(job.manifest_file))
    assert job.unlabelled is not None
    further = manifests.usable(manifests.load(job.unlabelled.manifest_file))
    known = provenance_of_job(job)
    assert known.own.contain(further, trained_only=True).all()
    shares = pd.Series(known.images.contain(rows)).groupby(rows["split"]).mean()
    assert shares.to_dict() == {"train": 1.0, "validation": 1.0, "test": 1.0}
    alone = provenance_of_job(job.model_copy(update={"teacher": None}))
    assert not alone.images.contain(rows[rows["split"] == "test"]).any()

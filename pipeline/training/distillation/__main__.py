"""A teacher's predictions: `python -P -m patchline.pipeline.training.distillation FOLDER`."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.reading.image_root import exists
from patchline.pipeline.evaluation.metrics.label_calibration import LabelCalibration, sigmoid
from patchline.pipeline.evaluation.metrics.mean_average_precision import mean_average_precision
from patchline.pipeline.models.calibrated_models import CalibratedModel
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.training.device import make_repeatable
from patchline.pipeline.training.distillation.job import (
    TEACHING,
    Taught,
    TeachingJob,
    class_columns,
    rows_of,
)
from patchline.pipeline.training.distillation.predictions import (
    DecodedImages,
    ImageToTeach,
    TeacherOutputs,
)
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.missing_data import missing_data


def teach(job: TeachingJob, events: EventWriter) -> Taught:
    """Predict what is not stored yet.

    Raises:
        DataError: if this machine does not have the data.
    """
    for each in job.images:
        if not exists(each.root):
            raise missing_data(each.root)
    device = torch.device(job.device)
    make_repeatable(job.threads, device)
    model, description = load_model(job.teacher)
    columns = class_columns(job.name, description.classes, job.classes, job.task).columns
    calibration = description.logit_calibration
    if isinstance(calibration, LabelCalibration):
        model = CalibratedModel(model, calibration)
    elif calibration.bias:  # its temperature is left out
        model = CalibratedModel(model, calibration.undivided())
    tables = [rows_of(each) for each in job.images]
    files = [
        ImageToTeach(each.root, path, sha256)
        for each, table in zip(job.images, tables, strict=True)
        for path, sha256 in zip(table["path"], table["sha256"], strict=True)
    ]
    images = DecodedImages(files, description.image)
    began = time.monotonic()
    outputs = TeacherOutputs.of(
        model.to(device),
        images,
        job.workspace,
        columns=columns,
        mirrored=job.mirrored,
        weights=job.sha256,
    )

    def rate() -> float:
        return images.used / max(1e-9, time.monotonic() - began)

    def report(done: int, total: int) -> None:
        events.progress(done, total, "taught", images_per_second=round(rate(), 1))

    file = outputs.compute(report)
    labelled = tables[0]
    return Taught(
        file=file,
        splits=job.images[0].splits,
        labelled=len(labelled),
        unlabelled=sum(map(len, tables[1:])),
        views=outputs.views,
        task=job.task,
        agreement=_agreement(file, labelled, job),
        images_per_second=rate(),
    )


def _agreement(file: Path, labelled: pd.DataFrame, job: TeachingJob) -> float:
    """Return the fraction of labelled images whose label the teacher predicts, or its mAP."""
    stored = np.load(file, mmap_mode="r", allow_pickle=False)[: len(labelled)]
    logits_NVK = np.array(stored).reshape(len(labelled), -1, len(job.classes))
    if job.task == label_sets.MULTI_LABEL:
        sets_NK = label_sets.matrix(list(labelled["label"]), job.classes)
        return mean_average_precision(sigmoid(logits_NVK).mean(1), sets_NK).value or 0.0
    predicted_N = torch.from_numpy(logits_NVK).softmax(2).mean(1).argmax(1).numpy()
    index = {label: number for number, label in enumerate(job.classes)}
    return float((predicted_N == labelled["label"].map(index).to_numpy()).mean())


if __name__ == "__main__":
    TEACHING.main(teach)

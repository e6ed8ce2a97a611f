"""The prediction worker: `python -P -m patchline.pipeline.evaluation FOLDER`.

What a run shows about why is extra: maps of its worst errors, a test of such maps, and two whole
pages. Whatever goes wrong while they are made, the report is complete without them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store.opened_images import open_images
from patchline.pipeline.evaluation.config import GALLERY_SIZE
from patchline.pipeline.evaluation.galleries import ChosenImage
from patchline.pipeline.evaluation.metrics.temperature import UNRECORDED
from patchline.pipeline.evaluation.prediction_job import (
    EVALUATION,
    EvaluationJob,
    ExplanationJob,
    Explanations,
    HeldOut,
    PredictionResult,
)
from patchline.pipeline.evaluation.predictions import FROM_MANIFEST, image_groups, save
from patchline.pipeline.evaluation.robustness import (
    AnyRobustness,
    sample_rows,
)
from patchline.pipeline.evaluation.tasks import TASKS
from patchline.pipeline.evaluation.visual_guide.attention_maps import (
    attention_maps,
    label_maps,
    run_covering_test,
)
from patchline.pipeline.evaluation.visual_guide.explaining import (
    ImageToExplain,
    subject_of,
    write_guide,
)
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.models.probing.chosen_features import ChosenFeatures, choose_rows
from patchline.pipeline.models.stored_features import save_features
from patchline.pipeline.models.stored_logits import logits_of
from patchline.pipeline.models.time_after_training import LARGE_MODEL
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workspace.files.atomic_files import open_replacing
from patchline.pipeline.workspace.files.stored_images import StoredImages

logger = logging.getLogger("patchline.pipeline.evaluation")

Array = np.ndarray[Any, Any]
_TESTED_IMAGES, _TESTED_IMAGES_LARGE = 64, 12
_MAPS_FILE = "error_maps.npz"


def predict(job: EvaluationJob, events: EventWriter) -> PredictionResult:
    """Predict the chosen splits in float32 and save their logits."""
    devices, images = devices_of(job), open_images(job.store)
    table = manifests.usable(manifests.load(job.manifest_file))
    rows_of_splits = np.flatnonzero(table["split"].isin(job.splits))
    parts = [(HeldOut(model_folder=job.model_folder), rows_of_splits)]
    parts += [(held_out, held_out.rows(table)) for held_out in job.held_out]
    total, began = sum(len(rows) for _, rows in parts), time.monotonic()
    tables: list[pd.DataFrame] = []
    kept = [*FROM_MANIFEST, *job.columns]
    features = ChosenFeatures(choose_rows(table, job.seed))
    for model, rows in parts:
        before = sum(len(part) for part in tables)
        report = partial(_report, events, before, total)
        observed = features if model.model_folder == job.model_folder else None
        logits_NK = logits_of(model.model_folder, images, rows, devices, report, observed)
        logits_NK = model.calibrated(logits_NK)
        tables.append(table.loc[rows, kept].assign(row=rows, logits=list(logits_NK)))
    predicted = pd.concat(tables).sort_values("row", kind="stable")
    seconds = time.monotonic() - began
    save(predicted, job.file)
    features_file = job.file.with_name("features.npz") if features.collected else None
    if features_file:
        save_features(features_file, features.collected)
    return PredictionResult(
        file=job.file,
        images=total,
        seconds=seconds,
        explanations=_explanations(job, predicted),
        features_file=features_file,
        robustness=_robustness(job, predicted, events),
    )


def devices_of(job: EvaluationJob) -> list[torch.device]:
    """Return the devices that predict: as many GPUs as have trained, as far as they are here."""
    if job.device != "cuda":
        return [torch.device(job.device)]
    count = max(1, min(job.processes, torch.cuda.device_count()))
    return [torch.device("cuda", number) for number in range(count)]


def _fit_unbalancing(
    job: EvaluationJob, logits: pd.DataFrame, description: ModelDescription
) -> Any:
    """Return what takes from logits what balancing the classes has added, if anything."""
    if job.ensemble or not job.class_images:
        return UNRECORDED
    task = TASKS[description.task]
    return task.calibrated(logits, description.classes, None, job.class_images)[1]


def _explanations(job: EvaluationJob, logits: pd.DataFrame) -> Explanations:
    if job.explained is None:
        return Explanations()
    model, description = load_model(job.model_folder)
    task = TASKS[description.task]
    table, fit = task.calibrated(logits, description.classes, job.ensemble, job.class_images)
    description = description.model_copy(update=task.described(fit))
    return explain_predictions(job.explained, model, description, open_images(job.store), table)


def explain_predictions(
    job: ExplanationJob,
    model: nn.Module,
    description: ModelDescription,
    images: StoredImages,
    table: pd.DataFrame,
) -> Explanations:
    """Look at the test images of a table of predictions; log a warning about what fails.

    Args:
        job: what to find out.
        model: the model, in evaluation mode and on the CPU.
        description: the model's description, with its temperature.
        images: the prepared store, uint8 (M, H, W, C).
        table: calibrated predictions, with the column `row` of the store.
    """
    large = sum(each.numel() for each in model.parameters()) > LARGE_MODEL
    task, test = TASKS[description.task], table[table["split"] == "test"]
    worst, labels = task.worst(task.predictions(test, description.classes), GALLERY_SIZE)
    explanations = Explanations()
    try:
        if len(worst):
            rows = test.iloc[worst]
            pixels = [np.array(images[row]) for row in rows["row"]]
            maps = (
                attention_maps(model, description, pixels)
                if labels is None
                else label_maps(model, description, pixels, labels)
            )
            file = job.folder / _MAPS_FILE
            with open_replacing(file) as opened:
                np.savez(opened, positions=rows.index.to_numpy(np.int64), maps=maps.maps_Bhw)
            explanations = Explanations(maps_file=file, maps_kind=maps.kind)
        last, most = len(test) - 1, _TESTED_IMAGES_LARGE if large else _TESTED_IMAGES
        spread = np.unique(np.linspace(0, last, min(most, len(test))).astype(int))
        pixels = [np.array(images[row]) for row in test["row"].iloc[spread]]
        covering = run_covering_test(model, description, pixels, job.seed)
        explanations = explanations.model_copy(update={"test": covering})
    except Exception:  # a plugin's model may do anything; the report goes without
        logger.warning("The maps of where the model looked could not be computed", exc_info=True)
    write_explanations(
        model,
        description,
        images,
        task.chosen(table, description.classes),
        job.folder,
        job.name,
        occlusion=not large,
    )
    return explanations


def write_explanations(
    model: nn.Module,
    description: ModelDescription,
    images: StoredImages,
    chosen: Sequence[ChosenImage],
    folder: Path,
    name: str,
    *,
    occlusion: bool = True,
) -> None:
    """Write a page for each chosen image; log a warning if that fails.

    Args:
        model: the model, in evaluation mode.
        description: the model's description, with its temperature.
        images: the prepared store.
        chosen: the images to explain.
        folder: the folder that receives the pages.
        name: the model's name, for the titles.
        occlusion: whether to run the model for each covered part of an image.
    """
    for each in chosen:
        try:
            pixels = np.array(images[each.row])
            image = ImageToExplain(Path(each.path).name, pixels, pixels, each.label)
            subject = subject_of(model, description, image, occlusion=occlusion)
            write_guide([subject], name, folder / f"{each.page}.html")
        except Exception:  # as above: the run goes without this page
            logger.warning("The prediction of %s could not be explained", each.path, exc_info=True)


def _robustness(
    job: EvaluationJob, logits: pd.DataFrame, events: EventWriter
) -> AnyRobustness | None:
    """Predict a sample of the test images in corrupted versions."""
    if not job.corrupted:
        return None
    tested = logits[logits["split"] == "test"]
    sample = tested.iloc[sample_rows(len(tested), job.corrupted, job.seed)]
    model, description = load_model(job.model_folder)
    device = torch.device(job.device)
    model = model.to(device)
    task, fit = TASKS[description.task], _fit_unbalancing(job, logits, description)

    def scores(images_BHWC: Array) -> Array:
        rows = np.arange(len(images_BHWC))
        logits_BK = predict_logits(model, images_BHWC, rows, description.image, device=device)
        scores_BK: Array = fit.logits(logits_BK.numpy())
        return scores_BK

    return task.robustness(
        scores,
        np.array(open_images(job.store)[sample["row"].to_numpy()]),
        task.labels(list(sample["label"]), description.classes),
        job.seed,
        lambda done, total: events.progress(done, total, "corrupted image"),
        image_groups(sample),
    )


def _report(events: EventWriter, before: int, total: int, done: int, _of_part: int) -> None:
    events.progress(before + done, total, "image")


if __name__ == "__main__":
    EVALUATION.main(predict)

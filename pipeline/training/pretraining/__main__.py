"""The test of what was pre-trained: `python -P -m patchline.pipeline.training.pretraining FOLDER`.

Shapes: B images of a batch, C channels, H height, W width.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import torch
from torch import nn

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store.opened_images import open_images
from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.config import GALLERY_SIZE
from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.training.pretraining.evaluating import (
    TESTING,
    PicturedImage,
    PretrainingJob,
    PretrainingResult,
    ViewFile,
)
from patchline.pipeline.training.recipe.objectives import build_objective, load_trained
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.plugin_api import ImageSpec, Objective

_BATCH = 64


@torch.inference_mode()
def evaluate_objective(job: PretrainingJob, events: EventWriter) -> PretrainingResult:
    """Compute the loss of every test image in float32, and draw the first ones.

    Raises:
        DataError: if there are no test images.
    """
    began, device = time.monotonic(), torch.device(job.device)
    objective = build_objective(job.config, job.image, 0)
    with torch.inference_mode(mode=False):
        module = objective.training_module(build_model(job.config.model, job.image, 0))
        with torch.no_grad():
            load_trained(job.trained, objective, module)
    module.to(device).eval()
    table = manifests.usable(manifests.load(job.manifest_file))
    rows = _test_rows(table)
    images, losses = open_images(job.store), list[float]()
    for start in range(0, len(rows), _BATCH):
        batch = torch.from_numpy(np.array(images[rows[start : start + _BATCH]])).to(device)
        losses += _losses(objective, module, normalize(batch, job.image))
        events.progress(min(start + _BATCH, len(rows)), len(rows), "image")
    shown = rows[:GALLERY_SIZE]
    batch = torch.from_numpy(np.array(images[shown])).to(device)
    pictures = objective.pictures(module, normalize(batch, job.image))
    return PretrainingResult(
        losses=tuple(losses),
        images=len(rows),
        pictures=_write_views(pictures, list(table["path"].iloc[shown]), job.image, job.folder),
        seconds=time.monotonic() - began,
    )


def _test_rows(table: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the rows of the test split, in the order of their files' digests."""
    rows = np.flatnonzero(table["split"] == "test")
    if not len(rows):
        raise DataError("There is no test image. Increase data.test_fraction.")
    return rows[np.argsort(table["sha256"].iloc[rows].to_numpy(), kind="stable")]


def _losses(objective: Objective, module: nn.Module, images_BCHW: torch.Tensor) -> list[float]:
    """Return the loss of each image if the module's outputs are that, or else of the batch."""
    outputs = module(images_BCHW)
    targets_B = torch.zeros(len(images_BCHW), dtype=torch.int64, device=images_BCHW.device)
    size = 1 if outputs.ndim == 1 else len(outputs)
    parts = (slice(start, start + size) for start in range(0, len(outputs), size))
    return [float(objective.loss(outputs[part], targets_B[part])) for part in parts]


def _write_views(
    pictures: dict[str, torch.Tensor], paths: list[str], image: ImageSpec, folder: Path
) -> tuple[PicturedImage, ...]:
    """Write all views as PNG files."""
    images = []
    for number, path in enumerate(paths if pictures else ()):
        views = []
        for place, (title, views_BCHW) in enumerate(pictures.items()):
            name = f"image_{number + 1}_view_{place + 1}.png"
            pixels = _pixels(views_BCHW[number], image)
            encoded = cv2.imencode(".png", np.ascontiguousarray(pixels[:, :, ::-1]))[1]
            with replace_file(folder / name) as temporary:
                temporary.write_bytes(encoded.tobytes())
            views.append(ViewFile(title=title, file=name))
        images.append(PicturedImage(path=path, views=tuple(views)))
    return tuple(images)


def _pixels(view_CHW: torch.Tensor, image: ImageSpec) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a normalised image as uint8 (H, W, C)."""
    mean_C, std_C = (torch.tensor(each, device=view_CHW.device) for each in (image.mean, image.std))
    pixels = (view_CHW.float().permute(1, 2, 0) * std_C + mean_C) * 255
    return pixels.round().clamp(0, 255).to(torch.uint8).cpu().numpy()


if __name__ == "__main__":
    TESTING.main(evaluate_objective)

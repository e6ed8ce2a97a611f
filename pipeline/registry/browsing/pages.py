"""Write the pages of a finished run in the MLflow UI, for a classifier or an encoder.

MLflow shows the images of a run as a grid with a slider over the steps. They are cut out of figures
that the run has already drawn. Shapes: height H, width W, channels C.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.evaluation import plots
from patchline.pipeline.evaluation.label_set_report import MultiLabelReport
from patchline.pipeline.evaluation.report import EvaluationReport
from patchline.pipeline.registry.browsing import saved_views
from patchline.pipeline.registry.browsing.outcome import (
    EncoderOutcome,
    Outcome,
    links,
    outcome_text,
)
from patchline.pipeline.registry.browsing.saved_views import (
    AUGMENTATION,
    ERRORS,
    FALSE_NEGATIVES,
    FALSE_POSITIVES,
    UNCERTAIN,
)
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.workspace.files.paths import safe_join
from patchline.pipeline.workspace.tracking import addresses
from patchline.pipeline.workspace.tracking.tracking_store import client

logger = logging.getLogger(__name__)

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

PREVIEW_FILE = "augmentation_preview.png"
_PREVIEW_COLUMNS = 9
"""The original image, then eight epochs."""
_PREVIEW_STEPS = 6
_GALLERY_STEPS = 3
_STRIP = 4
"""Images per row in a step of the augmentation grid."""


class GridImage(NamedTuple):
    """One image of a grid."""

    key: str
    step: int
    pixels_HWC: Pixels


def log_grids(outcome: Outcome) -> None:
    """Log the image grids of a run."""
    store = client()
    for image in grid_images(outcome):
        store.log_image(
            outcome.run.run_id,
            image.pixels_HWC,
            key=image.key,
            step=image.step,
            synchronous=True,
        )


def grid_images(outcome: Outcome) -> Iterator[GridImage]:
    """Yield the images of the grids.

    Augmentation: step 0 shows the originals, step 1 the same images in the first epoch, and so on.
    Errors and least certain images, or false positives and negatives: step 0 shows the first six,
    step 1 the next six.
    """
    preview = outcome.trained.best.parent / PREVIEW_FILE
    if preview.exists():
        for step, pixels in enumerate(preview_steps(_read(preview))):
            yield GridImage(AUGMENTATION, step, pixels)
    report, folder = outcome.evaluated.report, outcome.evaluated.folder
    for key, images, name in _galleries(report):
        if images and (folder / name).exists():
            rows = plots.gallery_rows(len(images))
            for step, pixels in enumerate(_slices(_read(folder / name), rows)[:_GALLERY_STEPS]):
                yield GridImage(key, step, _stack_halves(pixels))


def _galleries(
    report: EvaluationReport | MultiLabelReport,
) -> tuple[tuple[str, Sized, str], ...]:
    """Return the key, the images and the plot of each gallery."""
    if isinstance(report, MultiLabelReport):
        return (
            (FALSE_POSITIVES, report.confident_false_positives, plots.FALSE_POSITIVES),
            (FALSE_NEGATIVES, report.confident_false_negatives, plots.FALSE_NEGATIVES),
        )
    return (
        (ERRORS, report.most_confident_errors, plots.ERRORS),
        (UNCERTAIN, report.least_certain, plots.UNCERTAIN),
    )


def preview_steps(preview_HWC: Pixels, most: int = _PREVIEW_STEPS) -> list[Pixels]:
    """Cut the preview into its epochs, each an image with four tiles per row."""
    columns = np.split(preview_HWC, _PREVIEW_COLUMNS, axis=1)
    side = columns[0].shape[1]  # a square tile: an image with its margin
    steps = []
    for column in columns[:most]:
        tiles = [column[top : top + side] for top in range(0, len(column), side)]
        blank = np.full_like(tiles[0], 255)
        tiles += [blank] * (-len(tiles) % _STRIP)
        strips = [
            np.concatenate(tiles[left : left + _STRIP], axis=1)
            for left in range(0, len(tiles), _STRIP)
        ]
        steps.append(np.concatenate(strips, axis=0))
    return steps


def _stack_halves(row_HWC: Pixels) -> Pixels:
    """Stack the left half of a row of images on its right half, because grid cells are square."""
    left, right = np.split(row_HWC[:, : row_HWC.shape[1] // 2 * 2], 2, axis=1)
    return np.concatenate([left, right], axis=0)


def _slices(picture_HWC: Pixels, rows: int) -> list[Pixels]:
    return [np.ascontiguousarray(part) for part in np.array_split(picture_HWC, rows, axis=0)]


def _read(file: Path) -> Pixels:
    from PIL import Image

    with Image.open(file, formats=("PNG",)) as image:
        return np.asarray(image.convert("RGB"))


NOTE_TAG = "mlflow.note.content"
PROMOTED_TAG = "patchline.promoted"


def write_pages(outcome: Outcome) -> bool:
    """Name and describe the run, its version, its model and its experiment; log the image grids.

    The model is already registered, so a failure of the store only costs these pages.

    Returns:
        Whether everything was written.
    """
    try:
        _write_run(outcome)
        _write_version(outcome)
        saved_views.write_views(
            outcome.run.experiment_id,
            _text("experiment.md.j2", outcome),
            outcome.evaluated.report.headline.name,
        )
        log_grids(outcome)
    except Exception as error:  # noqa: BLE001 - the store can fail in many ways
        logger.warning("The run's pages in MLflow could not be written: %s", error)
        return False
    return True


def _write_run(outcome: Outcome) -> None:
    from mlflow.entities import Metric, RunTag

    store, run_id = client(), outcome.run.run_id
    moment, step = int(time.time() * 1000), outcome.trained.steps
    numbers = {
        "train/seconds": outcome.trained.seconds,
        "train/parameters": float(outcome.trained.parameters),
    }
    promoted = outcome.promotion is not None and outcome.promotion.promoted
    store.log_batch(
        run_id,
        metrics=[Metric(key, value, moment, step) for key, value in numbers.items()],
        tags=[
            RunTag(NOTE_TAG, outcome_text(outcome, links(outcome))),
            RunTag(f"test {outcome.evaluated.report.headline.name}", _main_metric_text(outcome)),
            RunTag(PROMOTED_TAG, str(promoted).lower()),
        ],
    )
    store.update_run(run_id, name=outcome.run_name)


def _main_metric_text(outcome: Outcome) -> str:
    main = outcome.evaluated.report.headline.estimate
    if main is None:
        return "unknown"
    return f"{main.value:.1%} ({100 * main.low:.1f} to {100 * main.high:.1f})"


def _write_version(outcome: Outcome) -> None:
    store, registered = client(), outcome.registered
    if not store.get_registered_model(registered.name).description:
        store.update_registered_model(registered.name, _text("model.md.j2", outcome))
    run = f"[Run in MLflow]({addresses.run_path(outcome.run)})"
    report = f"[Report]({addresses.report_path(outcome.run)})"
    text = outcome_text(outcome, f"{run} · {report}")
    store.update_model_version(registered.name, registered.version, text)


def _text(template: str, outcome: Outcome) -> str:
    return render_markdown(
        template,
        __package__,
        outcome=outcome,
        model=addresses.model_path(outcome.registered.name),
        views=saved_views.VIEWS,
        path=saved_views.path,
    )


_GRID_IMAGES = 6


def write_encoder_pages(outcome: EncoderOutcome) -> None:
    """Write the descriptions of the run and the version, and log the pictures as a grid.

    The encoder is registered already, so an error of the store costs descriptions, never the run.
    """
    try:
        store, run, registered = client(), outcome.run, outcome.registered
        text = outcome_text(outcome, links(outcome))
        store.set_tag(run.run_id, NOTE_TAG, text)
        store.update_run(run.run_id, name=outcome.run_name)
        store.update_model_version(registered.name, registered.version, text)
        _log_pictures(outcome)
    except Exception as error:  # noqa: BLE001 - the store can fail in many ways
        logger.warning("The run's pages in MLflow could not be written: %s", error)


def _log_pictures(outcome: EncoderOutcome) -> None:
    """Log each view as an image with a step for each test image."""
    import cv2

    folder, store = outcome.evaluated.folder, client()
    for step, image in enumerate(outcome.evaluated.report.pictures[:_GRID_IMAGES]):
        for view in image.views:
            file = safe_join(folder, view.file, "The report")
            pixels = cv2.imread(str(file), cv2.IMREAD_COLOR)
            if pixels is not None:
                key = view.title.lower()
                rgb = pixels[:, :, ::-1].copy()
                store.log_image(outcome.run.run_id, rgb, key=key, step=step, synchronous=True)

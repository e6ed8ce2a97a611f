"""The real images on which a form is compared with the package, and those that calibrate int8.

Shapes: N images of height H, width W and C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.reading import image_root
from patchline.pipeline.errors import DataError
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.pipeline.registry.version_evaluation import (
    EvaluationChoices,
    choose_images,
    prepared_images,
)
from patchline.pipeline.registry.version_records import VersionRecords, available_records

Array = np.ndarray[Any, Any]
StageProgress = Callable[[str, int, int], None]

MOST_IMAGES = 1000
"""That are compared; of more, a random sample that is the same each time."""
CALIBRATION_IMAGES = 128
"""That the ranges of int8 activations are taken from."""
_SEED = 20_260_101
_USE_DATA = "Give labelled images with --data."


@dataclass(frozen=True)
class ComparisonImages:
    """Images as the package takes them, with their true classes."""

    images_NHWC: Array
    labels_N: Array
    """Numbers of the classes; of a multi-label model, zeros and ones (N, K)."""
    origin: str
    """Which images these are, for a sentence."""
    calibration_NHWC: Array
    """Others than those that are compared; none if there are none."""
    calibration_origin: str


class _Chosen(NamedTuple):
    """Images that were chosen, not yet decoded."""

    rows: pd.DataFrame
    origin: str
    """Which images these are, for a sentence."""


def of_run(
    reference: ModelReference, workspace: Path, on_progress: StageProgress
) -> ComparisonImages:
    """Return test images of a version's own run, and training images for int8.

    Raises:
        DataError: if they are not recorded, or gone.
    """
    records = available_records(reference)
    if records.manifest is None:
        raise DataError(
            f"The run that trained {records.label} is gone, so its test images are not known and "
            f"nothing can be compared. {_USE_DATA}"
        )
    if records.root is None:
        raise DataError(
            f"The images that {records.label} was tested on are gone, so nothing can be compared. "
            f"Restore their folder, or point to others: {_USE_DATA.lower()}"
        )
    rows = manifests.usable(records.manifest)
    tested = _sample(rows[rows["split"] == "test"], MOST_IMAGES)
    trained = _sample(rows[rows["split"] == "train"], CALIBRATION_IMAGES)
    if tested.empty:
        raise DataError(
            f"The run that trained {records.label} has no test images, so nothing can be compared. "
            f"{_USE_DATA}"
        )
    total = int((rows["split"] == "test").sum())
    return _decoded(
        records,
        records.root,
        _Chosen(tested, f"{_of(len(tested), total)} test images of its run"),
        _Chosen(trained, f"{len(trained):,} training images of its run"),
        workspace,
        on_progress,
    )


def of_data(
    reference: ModelReference, config: RunConfig, workspace: Path, on_progress: StageProgress
) -> ComparisonImages:
    """Return images of other data; those that the version has seen calibrate int8, if any.

    Args:
        reference: of the version.
        config: its section `data` names the images.
        workspace: where decoded images are cached.
        on_progress: called as they are read.

    Raises:
        DataError: if no labelled image of the model's classes is left.
    """
    known = available_records(reference)
    choices = EvaluationChoices(
        split="auto", seen_images=not known.is_recorded, common_classes=True
    )
    chosen = choose_images(reference, config, choices, workspace, on_progress)
    records, rows = chosen.records, chosen.selection.rows
    everything = manifests.usable(chosen.data.manifest)
    others = everything[~everything["sha256"].isin(set(rows["sha256"]))]
    calibrating = others[others["split"] != "test"]
    source = "images of the data that are not compared"
    if len(calibrating) < CALIBRATION_IMAGES:
        shuffled = rows.sample(frac=1.0, random_state=_SEED)
        kept = min(CALIBRATION_IMAGES, len(rows) // 4)
        calibrating, rows = shuffled[:kept], shuffled[kept:]
    tested, calibrating = _sample(rows, MOST_IMAGES), _sample(calibrating, CALIBRATION_IMAGES)
    caveat = (
        ""
        if known.is_recorded
        else ", of which it is not known whether the model was trained on them"
    )
    return _decoded(
        records,
        chosen.data.root,
        _Chosen(tested, f"{_of(len(tested), len(rows))} images of {chosen.data.name}{caveat}"),
        _Chosen(calibrating, f"{len(calibrating):,} {source}"),
        workspace,
        on_progress,
    )


def _decoded(
    records: VersionRecords,
    root: Path,
    tested: _Chosen,
    calibrating: _Chosen,
    workspace: Path,
    on_progress: StageProgress,
) -> ComparisonImages:
    package = records.package
    if not image_root.exists(root):
        raise DataError(f"The images in {root} are gone. {_USE_DATA}")
    both = pd.concat([tested.rows, calibrating.rows], ignore_index=True)
    images = prepared_images(package, both, root, workspace, on_progress)
    number = {name: position for position, name in enumerate(package.classes)}
    return ComparisonImages(
        images_NHWC=np.array(images[np.arange(len(tested.rows))]),
        labels_N=label_sets.matrix(list(tested.rows["label"]), package.classes)
        if package.is_multi_label
        else tested.rows["label"].map(number).to_numpy(np.int64),
        origin=tested.origin,
        calibration_NHWC=np.array(images[np.arange(len(tested.rows), len(both))]),
        calibration_origin=calibrating.origin,
    )


def _sample(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    if len(rows) <= most:
        return rows
    return rows.sample(n=most, random_state=_SEED)


def _of(count: int, total: int) -> str:
    return f"{count:,}" if count == total else f"{count:,} (random) of {total:,}"

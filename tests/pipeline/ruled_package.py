"""A package with rules for sets and warnings, and images for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from patchline.pipeline.models.model_description import AnswerRules, SetThreshold
from patchline.pipeline.packaging.packaged_model import REFERENCE_FILE, PackagedModel
from tests.pipeline.conftest import Exported

Array = np.ndarray[Any, Any]


def photograph(seed: int) -> Array:
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return np.asarray(cv2.resize(coarse, (48, 48), interpolation=cv2.INTER_NEAREST))


def package_with_rules(exported: Exported, folder: Path, **changed: Any) -> PackagedModel:
    """Return the package with rules for three coverages and for all warnings."""
    thresholds = (
        SetThreshold(coverage=0.9, least_probability=0.3),
        SetThreshold(coverage=0.95, least_probability=0.1),
        SetThreshold(coverage=0.99, least_probability=None, unknown="only 40 validation images"),
    )
    rules = AnswerRules(
        coverage=0.95, thresholds=thresholds, images=40, basis="validation images",
        false_alarms=0.05, dark=64.0, blurred=0.3, least_side=20, far=0.5,
    ).model_copy(update=changed)  # fmt: skip
    description = json.loads(exported.description_file.read_text("utf-8"))
    description["answers"] = rules.model_dump(mode="json")
    folder.mkdir(exist_ok=True)
    shutil.copy(exported.onnx_file, folder / "model.onnx")
    (folder / "model.json").write_text(json.dumps(description), "utf-8")
    plain = PackagedModel(exported.onnx_file, exported.description_file, threads=1)
    seen = np.stack([plain.pixels(photograph(seed)) for seed in range(5)])
    [features] = plain.named_outputs(seen, ["features"])
    np.savez(folder / REFERENCE_FILE, reference=features, nearest=1)
    return PackagedModel(folder / "model.onnx", folder / "model.json", threads=1)

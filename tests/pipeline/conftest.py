"""Small models with random weights, exported once for all tests; a connection that may fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from filelock import FileLock
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.evaluation.metrics.label_calibration import (
    LabelCalibration,
    LabelThresholds,
)
from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import Calibration, ModelDescription
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.packaging.calibrated_onnx import ProbabilityModel, export_onnx
from patchline.plugin_api import ImageSpec
from tests.conftest import shared_folder
from tests.object_server import FaultyConnection, ObjectServer, faulty_connection

SIDE = 16
TEMPERATURE = TemperatureFit(temperature=0.7, state="unknown")
CLASSES = ("across", "down", "rising", "falling", "flat", "dotted")


def image_spec(channels: int) -> ImageSpec:
    """Return the spec of small images whose channels are normalised differently."""
    return ImageSpec.model_validate(
        {
            "channels": channels,
            "height": SIDE,
            "width": SIDE,
            "mean": (0.3, 0.5, 0.6)[:channels],
            "std": (0.2, 0.3, 0.25)[:channels],
            "resize": "crop",
        }
    )


def random_pixels(images: int) -> np.ndarray[Any, Any]:
    """Return images for a small model."""
    shape = (images, SIDE, SIDE, 3)
    return np.random.default_rng(images).integers(0, 256, shape, dtype=np.uint8)


def random_model(
    channels: int,
    *,
    seed: int = 0,
    calibration: Calibration | None = None,
) -> ProbabilityModel:
    """Return a small `vit` with weights large enough that images differ in their answers."""
    torch.manual_seed(seed)
    image = image_spec(channels)
    model = build_model(vit_choice(), image, len(CLASSES))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.25)
    return ProbabilityModel(model, image, calibration or TEMPERATURE).eval()


def vit_choice() -> ModelChoice:
    settings: dict[str, Any] = {"embed_dim": 24, "depth": 2, "num_heads": 2, "mlp_dim": 32}
    patch_embedding = {"name": "conv", "patch_size": 4}
    return ModelChoice.model_validate(
        {"name": "vit", "patch_embedding": patch_embedding, **settings}
    )


class Exported(NamedTuple):
    """A model and the two files that a packaged model is read from."""

    model: ProbabilityModel
    onnx_file: Path
    description_file: Path


LABEL_CALIBRATION = LabelCalibration(
    scales=(1.0, 0.5, 0.8, 1.2, 1.0, 1.0),
    shifts=(0.0, 0.2, -0.3, 0.0, 0.1, 0.0),
    determined=(True, True, True, True, True, False),
    positives=(20, 20, 20, 20, 20, 3),
    images=60,
)
LABEL_THRESHOLDS = LabelThresholds(
    values=(0.5, 0.3, 0.6, 0.45, 0.55, 0.5), fitted=(True,) * 5 + (False,), images=60
)


def _export(shared: Path, labels: LabelCalibration | None = None) -> Exported:
    """Export the model, once for all test processes."""
    name = f"exported{'_sets' if labels else ''}"
    model, folder = random_model(3, calibration=labels), shared / name
    with FileLock(shared / f"{name}.lock"):
        if not folder.exists():
            description = ModelDescription(
                model=vit_choice(), plugins=(), classes=CLASSES, image=model.image,
                temperature=0.7,
            )  # fmt: skip
            if labels:
                sets = {"label_calibration": labels, "thresholds": LABEL_THRESHOLDS}
                update = {"task": MULTI_LABEL, "temperature": 1.0, **sets}
                description = description.model_copy(update=update)
            unfinished = shared / f"unfinished_{name}"
            save_model(unfinished, model.model, description)
            export_onnx(model, unfinished / "model.onnx")
            unfinished.rename(folder)
    return Exported(model, folder / "model.onnx", folder / "model.json")


@pytest.fixture(scope="session")
def exported_rgb(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Return a model of RGB images; tests must not change it."""
    return _export(shared_folder(tmp_path_factory))


@pytest.fixture(scope="session")
def exported_sets(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Return a multi-label model of RGB images; tests must not change it."""
    return _export(shared_folder(tmp_path_factory), LABEL_CALIBRATION)


@pytest.fixture
def connection(
    objects: ObjectServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultyConnection]:
    """Return the connection of this process to its bucket, which passes all until it is told."""
    assert bucket
    with faulty_connection(objects) as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made

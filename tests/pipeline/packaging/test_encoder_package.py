"""The package of an encoder: features like the trained model's, and no classes to predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from patchline.pipeline import config_files
from patchline.pipeline.errors import ModelReferenceError, PackagingError
from patchline.pipeline.models.inference import normalised
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.packaging.agreement import largest_difference
from patchline.pipeline.packaging.calibrated_onnx import FeatureModel, export_onnx
from patchline.pipeline.packaging.model_card import CardFacts, model_card
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.plugin_system.plugin_settings import resolve_settings
from patchline.pipeline.registry.package_download import open_package
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.plugin_api import DataTraits
from tests.pipeline.conftest import image_spec

IMAGE = image_spec(3)


def test_an_encoder_answers_with_features(tmp_path: Path) -> None:
    """The input of the untrained head, equal to torch's; opened as a classifier it is refused."""
    model_settings = {"embed_dim": 24, "depth": 1, "num_heads": 2, "mlp_dim": 32}
    traits = DataTraits(3, 16, 16, 0, mirror_symmetric=True)
    choice = resolve_settings(config_files.validated({"model": model_settings}), traits).model
    model: Any = build_model(choice, IMAGE, 0).eval()
    description = ModelDescription(model=choice, plugins=(), classes=(), image=IMAGE)
    folder = tmp_path / "artifacts"
    folder.mkdir()
    save_model(folder, model, description)
    whole = FeatureModel(model, IMAGE).eval()
    export_onnx(whole, folder / "model.onnx")
    images = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), np.uint8)
    assert largest_difference(whole, folder / "model.onnx", images, np.arange(12)) < 1e-4
    other = FeatureModel(build_model(choice, IMAGE, 0), IMAGE).eval()
    with pytest.raises(PackagingError, match=r"for test image number \d+ of 12, but .* in torch"):
        largest_difference(other, folder / "model.onnx", images, np.arange(12))

    package = PackagedModel(folder / "model.onnx", folder / "model.json")
    answers = package.answers([images[0], b"no image"])
    with torch.no_grad():
        tokens = model.encode(normalised(torch.from_numpy(images[:1]), IMAGE))
    assert np.allclose(answers[0]["features"], tokens[0, 0], atol=1e-4)
    assert answers[0]["error"] is None
    assert set(answers[1]) == {"features", "error"}
    assert answers[1]["features"] is None
    assert answers[1]["error"]

    card = model_card(description, CardFacts(name="moths-encoder"), parameters=1, check="equal")
    assert "--model.init moths-encoder/VERSION" in card
    assert "classif" in card
    assert "## Classes" not in card
    with pytest.raises(ModelReferenceError, match="moths-encoder' version 2 is an encoder without"):
        open_package(ModelReference("moths-encoder", "2", "models:/m-1"), tmp_path)

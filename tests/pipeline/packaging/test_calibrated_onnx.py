"""What the packaged graph computes, probabilities and all else, compared with torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.errors import PackagingError
from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit
from patchline.pipeline.models.calibrated_models import Ensemble
from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.layers.intermediate_values import record_values
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.packaging.agreement import inner_differences
from patchline.pipeline.packaging.calibrated_onnx import (
    ProbabilityModel,
    export_onnx,
    observe_model,
)
from tests.pipeline.conftest import CLASSES, Exported, image_spec, random_pixels

Array = np.ndarray[Any, Any]
ALL = ("probabilities", "features", "attention", "readings")
FITS = [
    TemperatureFit(temperature=0.7, state="fitted", bias=tuple(np.linspace(-2, 0, len(CLASSES)))),
    TemperatureFit(temperature=2.0, state="fitted"),
]
SMALL: dict[str, Any] = {"embed_dim": 24, "depth": 2, "num_heads": 2, "mlp_dim": 32}


def _model(name: str, embedding: str = "conv", **settings: Any) -> nn.Module:
    patches: dict[str, Any] = {"name": embedding}
    if embedding == "conv":
        patches["patch_size"] = 4
    chosen = {"name": name, "patch_embedding": patches, **settings}
    torch.manual_seed(0)
    model = build_model(ModelChoice.model_validate(chosen), image_spec(3), len(CLASSES))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.25)
    return model.eval()


def _cct(**settings: Any) -> nn.Module:
    return _model("cct", "cct", size="2", **settings)


def _run(file: Path, images: Array) -> dict[str, Array]:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"images": images}), strict=True))


@pytest.mark.parametrize("count", [1, 3])
def test_the_outputs_are_the_models_own_values(exported_rgb: Exported, count: int) -> None:
    """Features, attention and readings equal what torch computes step by step."""
    images, whole = random_pixels(count), exported_rgb.model
    outputs = _run(exported_rgb.onnx_file, images)
    assert tuple(outputs) == ALL
    model: Any = whole.model
    with torch.inference_mode(), record_values(model) as values:
        inputs = normalize(torch.from_numpy(images), whole.image)
        encoded_BND = model.encode(inputs)
        weights = [block.attention.weights_BHNN for block in values.blocks]
        tokens = [block.tokens_out_BND for block in values.blocks]
        read = [torch.softmax(model.head(model.norm(each)[:, 0]) / 0.7, dim=1) for each in tokens]
    np.testing.assert_allclose(outputs["features"], encoded_BND[:, 0], atol=1e-4)
    seen = torch.stack([each.mean(1)[:, 0, 1:].reshape(-1, 4, 4) for each in weights], dim=1)
    np.testing.assert_allclose(outputs["attention"], seen, atol=1e-5)
    np.testing.assert_allclose(outputs["readings"], torch.stack(read, dim=1), atol=1e-5)
    np.testing.assert_allclose(outputs["readings"][:, -1], outputs["probabilities"], atol=1e-5)


class Headless(nn.Module):
    """Averages the pixels: it does not end in a linear layer."""

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return images_BCHW.mean((2, 3)).repeat(1, 2)


MODELS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "average": (lambda: _model("vit", pooling="average", head="tanh", **SMALL), ALL),
    "flip": (lambda: _model("vit", test_time_flip=True, **SMALL | {"depth": 1}), ALL),
    "attention pooling": (lambda: _model("vit", pooling="attention", **SMALL), ALL[:3]),
    "cct": (_cct, ALL),
    "no head": (Headless, ALL[:1]),
    "resnet": (lambda: _model("torchvision", "none", architecture="resnet18"), ALL[:2]),
    "ensemble": (
        lambda: Ensemble([_cct(depth=1), _cct(depth=1, mlp_dim=64)], FITS, len(CLASSES)),
        ALL,
    ),
    "mixed ensemble": (
        lambda: Ensemble(
            [
                _model("vit", **SMALL),
                _model("torchvision", "none", architecture="mobilenet_v3_small"),
            ],
            FITS,
            len(CLASSES),
        ),
        ALL[:2],
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_each_model_has_what_it_can(kind: str) -> None:
    """A model has the outputs that its layers allow; the last reading is its prediction."""
    build, names = MODELS[kind]
    whole = ProbabilityModel(build().eval(), image_spec(3), FITS[0]).eval()
    images = torch.from_numpy(random_pixels(5))
    with torch.inference_mode():
        expected = whole(images)
        with observe_model(whole) as answers:
            probabilities, *inner = answers(images)
    assert ("probabilities", *answers.names) == names
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    by_name = dict(zip(answers.names, inner, strict=True))
    assert all(len(value) == 5 for value in inner)
    if "readings" in names:
        np.testing.assert_allclose(by_name["readings"][:, -1], expected, atol=1e-5)
        np.testing.assert_allclose(by_name["readings"].sum(-1), 1, atol=1e-5)
    if "attention" in names:
        assert float(by_name["attention"].min()) >= 0
        assert float(by_name["attention"].sum((2, 3)).max()) <= 1 + 1e-5


@pytest.mark.parametrize("kind", ["flip", pytest.param("ensemble", marks=pytest.mark.slow)])
def test_the_exported_outputs_equal_torchs(tmp_path: Path, kind: str) -> None:
    """Exported, the outputs agree with torch; one that does not agree can be left out."""
    build, names = MODELS[kind]
    whole = ProbabilityModel(build().eval(), image_spec(3), FITS[0]).eval()
    file, without = tmp_path / "m.onnx", ["attention"] if kind == "flip" else []
    names = tuple(each for each in names if each not in without)
    assert export_onnx(whole, file, without=without) == names
    differences = inner_differences(whole, file, random_pixels(5), np.arange(5))
    assert set(differences) == set(names[1:])
    assert max(differences.values()) < 1e-4


def test_normalisation_and_temperature_are_inside(exported_rgb: Exported) -> None:
    """The file takes raw uint8 pixels: mean, std, softmax and temperature are applied in it.

    It holds all weights, and no path of this machine.
    """
    content = exported_rgb.onnx_file.read_bytes()
    assert b".py" not in content
    assert str(Path(__file__).parents[3]).encode() not in content
    names = {file.name for file in exported_rgb.onnx_file.parent.iterdir()}
    assert names == {"model.onnx", "model.json", "model.safetensors"}
    images, model = random_pixels(5), exported_rgb.model
    image = image_spec(3)
    fed = (images / 255 - np.array(image.mean)) / np.array(image.std)
    with torch.inference_mode():
        logits = model.model(torch.from_numpy(fed.transpose(0, 3, 1, 2)).float()).double().numpy()
    powers = np.exp(logits / 0.7)
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        _run(exported_rgb.onnx_file, images)["probabilities"], expected, atol=1e-5
    )


def test_what_torch_cannot_export_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    """A model whose way depends on the pixels is refused, and no half file stays."""

    class Branching(nn.Module):
        """Looks at the values in Python."""

        def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
            if float(images_BCHW.mean()) > 0:
                return images_BCHW.flatten(1)[:, :3]
            return images_BCHW.flatten(1)[:, 3:6]

    model = ProbabilityModel(Branching(), image_spec(3))
    with pytest.raises(PackagingError, match="cannot be exported to ONNX"):
        export_onnx(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []

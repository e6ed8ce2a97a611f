"""The exported model computes what torch computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from patchline.pipeline.errors import PackagingError
from patchline.pipeline.packaging.calibrated_onnx import ProbabilityModel, export_onnx
from tests.pipeline.conftest import CLASSES, SIDE, Exported, image_spec

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def _images(count: int, channels: int) -> Pixels:
    generator = np.random.default_rng(count)
    shape = (count, SIDE, SIDE, channels)
    return generator.integers(0, 256, shape, dtype=np.uint8)


def _onnx(file: Path, images: Pixels) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"images": images})[0])


@pytest.mark.parametrize("channels", [1, 3])
def test_conv_equals_torch(exported_rgb: Exported, exported_grey: Exported, channels: int) -> None:
    """With the conv embedding, batches of 1, 2 and 7 give torch's probabilities."""
    exported = exported_rgb if channels == 3 else exported_grey
    for batch in (1, 2, 7):
        images = _images(batch, channels)
        with torch.inference_mode():
            expected = exported.model(torch.from_numpy(images)).numpy()
        answers = _onnx(exported.onnx_file, images)
        assert answers.shape == (batch, len(CLASSES))
        np.testing.assert_allclose(answers, expected, atol=1e-5)
        np.testing.assert_allclose(answers.sum(axis=1), 1.0, atol=1e-5)
    assert float(answers.std(axis=0).max()) > 0.05, "the images do not differ"


def test_normalisation_and_temperature_are_inside(exported_rgb: Exported) -> None:
    """The file takes raw uint8 pixels: mean, std, softmax and temperature are applied in it.

    It holds all weights, and no path of this machine.
    """
    content = exported_rgb.onnx_file.read_bytes()
    assert b".py" not in content
    assert str(Path(__file__).parents[3]).encode() not in content
    names = {file.name for file in exported_rgb.onnx_file.parent.iterdir()}
    assert names == {"model.onnx", "model.json", "model.safetensors"}
    images, model = _images(5, 3), exported_rgb.model
    image = image_spec(3)
    fed = (images / 255 - np.array(image.mean)) / np.array(image.std)
    with torch.inference_mode():
        logits = model.model(torch.from_numpy(fed.transpose(0, 3, 1, 2)).float()).double().numpy()
    powers = np.exp(logits / 0.7)
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(_onnx(exported_rgb.onnx_file, images), expected, atol=1e-5)


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

"""The exported model computes what torch computes, and a model that does not is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from pipeline.errors import PackagingError
from pipeline.packaging.calibrated_onnx import ProbabilityModel, export_onnx, largest_difference
from tests.pipeline.conftest import CLASSES, SIDE, Exported, image_spec, random_model

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def _images(count: int, channels: int) -> Pixels:
    generator = np.random.default_rng(count)
    shape = (count, SIDE, SIDE, channels)
    return generator.integers(0, 256, shape, dtype=np.uint8)


def _onnx(file: Path, images: Pixels) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"images": images})[0])


def _check_batches(model: ProbabilityModel, file: Path) -> None:
    for batch in (1, 2, 7):
        images = _images(batch, model.image.channels)
        with torch.inference_mode():
            expected = model(torch.from_numpy(images)).numpy()
        answers = _onnx(file, images)
        assert answers.shape == (batch, len(CLASSES))
        np.testing.assert_allclose(answers, expected, atol=1e-5)
        np.testing.assert_allclose(answers.sum(axis=1), 1.0, atol=1e-5)
    assert float(answers.std(axis=0).max()) > 0.05, "the images do not differ"


@pytest.mark.parametrize("channels", [1, 3])
def test_conv_equals_torch(exported_rgb: Exported, exported_grey: Exported, channels: int) -> None:
    """With the conv embedding, batches of 1, 2 and 7 give torch's probabilities."""
    exported = exported_rgb if channels == 3 else exported_grey
    _check_batches(exported.model, exported.onnx_file)


@pytest.mark.parametrize("channels", [1, 3])
def test_linear_equals_torch(tmp_path: Path, channels: int) -> None:
    """With the linear embedding, batches of 1, 2 and 7 give torch's probabilities."""
    model = random_model(channels, "linear")
    export_onnx(model, tmp_path / "model.onnx")
    _check_batches(model, tmp_path / "model.onnx")


def test_normalisation_and_temperature_are_inside(exported_rgb: Exported) -> None:
    """The file takes raw uint8 pixels: mean, std, softmax and temperature are applied in it."""
    images, model = _images(5, 3), exported_rgb.model
    image = image_spec(3)
    fed = (images / 255 - np.array(image.mean)) / np.array(image.std)
    with torch.inference_mode():
        logits = model.model(torch.from_numpy(fed.transpose(0, 3, 1, 2)).float()).double().numpy()
    powers = np.exp(logits / 0.7)
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(_onnx(exported_rgb.onnx_file, images), expected, atol=1e-5)


def test_one_file_holds_everything(exported_rgb: Exported) -> None:
    """The weights are inside the ONNX file; no second file stands beside it."""
    names = {file.name for file in exported_rgb.onnx_file.parent.iterdir()}
    assert names == {"model.onnx", "model.json", "model.safetensors"}


def test_a_faithful_export_differs_by_rounding_alone(exported_rgb: Exported) -> None:
    """Compared with its own model, the largest difference is far below what is allowed."""
    for count in (1, 3, 25):
        difference = largest_difference(
            exported_rgb.model, exported_rgb.onnx_file, _images(count, 3)
        )
        assert 0 <= difference < 1e-5


def test_a_file_of_another_model_is_refused(exported_rgb: Exported) -> None:
    """A package that answers otherwise than the trained model is an error with the difference."""
    other = random_model(3, seed=1)
    with pytest.raises(PackagingError, match=r"differs .* by 0\.\d+; at most 0\.0001 is allowed"):
        largest_difference(other, exported_rgb.onnx_file, _images(25, 3))


@pytest.mark.parametrize("bad_image", [0, 2, 9, 24])
def test_a_difference_in_one_image_is_found(exported_rgb: Exported, bad_image: int) -> None:
    """Whichever batch it falls into, a single image with another answer is enough."""

    class Lying(nn.Module):
        """Answers like the model, but for one image."""

        def __init__(self, bad: torch.Tensor) -> None:
            super().__init__()
            self.bad = bad

        def forward(self, images_BHWC: torch.Tensor) -> torch.Tensor:
            probabilities_BK: torch.Tensor = exported_rgb.model(images_BHWC)
            is_bad_B = (images_BHWC == self.bad).all(dim=(1, 2, 3))
            return torch.where(is_bad_B[:, None], probabilities_BK.flip(1), probabilities_BK)

    images = _images(25, 3)
    lying: Any = Lying(torch.from_numpy(images[bad_image]))
    with pytest.raises(PackagingError):
        largest_difference(lying, exported_rgb.onnx_file, images)


def test_answers_that_are_no_numbers_are_refused(exported_rgb: Exported) -> None:
    """A model that answers NaN does not count as one without difference."""

    class Nothing(nn.Module):
        """Answers NaN."""

        def forward(self, images_BHWC: torch.Tensor) -> torch.Tensor:
            return torch.full((len(images_BHWC), len(CLASSES)), float("nan"))

    nothing: Any = Nothing()
    with pytest.raises(PackagingError):
        largest_difference(nothing, exported_rgb.onnx_file, _images(3, 3))


def test_what_torch_cannot_export_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    """A model whose way depends on the pixels is refused, and no half file stays."""

    class Branching(nn.Module):
        """Looks at the values in Python."""

        def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
            if float(images_BCHW.mean()) > 0:
                return images_BCHW.flatten(1)[:, :3]
            return images_BCHW.flatten(1)[:, 3:6]

    model = ProbabilityModel(Branching(), image_spec(3), temperature=1.0)
    with pytest.raises(PackagingError, match="cannot be exported to ONNX"):
        export_onnx(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []

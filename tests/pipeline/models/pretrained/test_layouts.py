"""Published weight files against the libraries that wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.pretrained.layouts import ConvertedWeights, convert
from patchline.pipeline.models.pretrained.weights_file import read_tensors
from patchline.pipeline.training.initial_weights.finding import find_converted
from patchline.pipeline.training.initial_weights.loading import load_into
from patchline.pipeline.training.initial_weights.record import weights_folder
from tests.pipeline.models.pretrained.published_files import PUBLISHED
from tests.pipeline.models.pretrained.tiny_models import CLASSES, HEADS
from tests.plugins.model_parity import image_spec, random_images


def built_from(converted: ConvertedWeights) -> Any:
    """Build the model that the conversion names, and load its weights strictly."""
    choice = ModelChoice.model_validate({"name": converted.model, **converted.settings})
    image = image_spec(converted.image_size, channels=converted.channels)
    model: Any = build_model(choice, image, converted.num_classes or CLASSES)
    if converted.num_classes is None:
        model.head = nn.Identity()
    model.load_state_dict(converted.weights, strict=True)
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_gives_the_same_function(name: str, tmp_path: Path) -> None:
    """Logits, or features without a head, equal the library's; every tensor is accounted for."""
    published = PUBLISHED[name](tmp_path)
    converted = convert(published.file, num_heads=HEADS)
    assert converted.layout == published.title
    assert (converted.num_classes == CLASSES) is published.has_head
    images_BCHW = random_images(3, converted.image_size)
    expected = published.answer(images_BCHW)
    assert float(expected.std()) > 0.1
    torch.testing.assert_close(built_from(converted)(images_BCHW), expected, atol=2e-5, rtol=0)

    weights, others, _ = read_tensors(published.file)
    used = {source for sources in converted.sources.values() for source in sources}
    assert used | converted.skipped.keys() == weights.keys() | others.keys()
    assert not used & converted.skipped.keys()
    assert converted.sources.keys() == converted.weights.keys()
    assert all(converted.skipped.values())


@torch.no_grad()
@pytest.mark.parametrize("side", [24, 75])
@pytest.mark.parametrize("name", ["DINOv2", "DINOv2 with registers"])
def test_images_of_another_size_have_the_features_of_transformers(
    name: str, side: int, tmp_path: Path
) -> None:
    """Positions are resized as there: also with pixels that fill no patch, which are left out."""
    published = PUBLISHED[f"transformers {name}"](tmp_path)
    found = find_converted(str(published.file), tmp_path)
    model: Any = build_model(ModelChoice.model_validate(found.settings), image_spec(side), 0)
    load_into(model, found, weights_folder(tmp_path, found.sha256), ())
    images_BCHW = random_images(3, side)
    tokens_BND = model.eval().encode(images_BCHW)
    expected = published.answer(images_BCHW)
    torch.testing.assert_close(tokens_BND[:, 0], expected, atol=2e-5, rtol=0)

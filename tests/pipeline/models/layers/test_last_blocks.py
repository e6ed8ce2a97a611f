"""The last blocks of a model take its tokens, and give what the whole model gives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.layers.last_blocks import LastBlocks, divisible, whole_model
from patchline.pipeline.models.model_building import build_model
from tests.pipeline.models.probing.tiny_models import image_spec, tiny_model

SIZE = {"embed_dim": 24, "depth": 3, "num_heads": 2, "mlp_dim": 32}
MODELS: dict[str, dict[str, Any]] = {
    "vit": {"patch_embedding": {"name": "conv_stem"}},
    "clip": {"embedding_norm": True, "activation": "quick_gelu", "pooling": "average"},
    "attention": {"pooling": "attention", "layer_scale": 0.1, "positions": "sine_cosine"},
    "tanh": {"head": "tanh", "norm": "rms_norm", "qk_norm": True},
    "vit_registers": {},
    "rope_vit": {"num_registers": 2},
    "simple_vit": {},
    "vit_small_data": {},
    "cct": {},
}


def small(name: str, **settings: Any) -> torch.nn.Module:
    """Return a model of three blocks for images of 16x16 pixels, with random weights."""
    torch.manual_seed(0)
    choice = ModelChoice.model_validate(
        {
            "name": name if "vit" in name or name == "cct" else "vit",
            **SIZE,
            **MODELS[name],
            **settings,
        }
    )
    return build_model(choice, image_spec(16), 5).eval()


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_last_blocks_give_what_the_model_gives(name: str) -> None:
    """For any number of blocks, from none to all of them."""
    model = small(name)
    images_BCHW = torch.randn(2, 3, 16, 16)
    expected_BK = model(images_BCHW)
    for count in range(4):
        last = LastBlocks(model, count).eval()
        tokens_BND = divisible(model, count).tokens_after(images_BCHW, last.first)
        torch.testing.assert_close(last(tokens_BND), expected_BK)
        assert len(last.blocks) == count
        assert whole_model(last) is model


@torch.inference_mode()
def test_a_test_time_flip_takes_the_tokens_of_both_views() -> None:
    """The head gets the average of the image and its mirror image, as in the whole model."""
    model = small("vit", test_time_flip=True)
    images_BCHW = torch.randn(2, 3, 16, 16)
    vit = divisible(model, 1)
    views = [vit.tokens_after(each, 2) for each in (images_BCHW, images_BCHW.flip(-1))]
    torch.testing.assert_close(LastBlocks(model, 1)(torch.stack(views, 1)), model(images_BCHW))


def test_a_copy_shares_the_frozen_layers_alone() -> None:
    """Training the copy changes its own whole model, and costs no second frozen network."""
    last = LastBlocks(small("vit_registers"), 1)
    copied = copy.deepcopy(last)
    pairs = zip(last.whole.named_parameters(), copied.whole.parameters(), strict=True)
    own = {id(each) for each in last.parameters()}
    for (name, before), after in pairs:
        assert (before is after) == (id(before) not in own), name
    assert {id(each) for each in copied.parameters()} < {
        id(each) for each in copied.whole.parameters()
    }
    assert sum(each.numel() for each in last.parameters()) < sum(
        each.numel() for each in last.whole.blocks.parameters()
    )


@pytest.mark.parametrize("name", ["torchvision", "timm"])
def test_models_of_other_libraries_say_that_they_cannot_be_divided(name: str) -> None:
    """In one sentence, with what to set instead."""
    model, _, _ = tiny_model(name)
    with pytest.raises(ConfigError, match=r"cannot be divided .* Set training.trainable to head"):
        LastBlocks(model, 1)

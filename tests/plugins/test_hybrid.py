"""The hybrid embedding against torchvision's ResNets, and its choice of a stage."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from patchline.plugin_api import DataTraits, PatchEmbeddingContext
from patchline.plugins.patch_embeddings import hybrid
from patchline.plugins.patch_embeddings.hybrid import HybridConfig

D = 12


def _built(shape: tuple[int, int, int], **given: Any) -> Any:
    torch.manual_seed(0)
    return hybrid.build(HybridConfig(**given), PatchEmbeddingContext(*shape, D))


def _reference(backbone: str, stage: int, features: nn.Sequential) -> nn.Sequential:
    """Return torchvision's ResNet with plain convolutions of the weights, standardised here."""
    network = getattr(torchvision.models, backbone)(norm_layer=partial(nn.GroupNorm, 32))
    children = list(network.children())[: 4 + stage]
    reference = nn.Sequential(*children)
    state = {}
    for name, value in features.state_dict().items():
        weight = value.double().numpy()
        if value.ndim == 4:
            each = weight.reshape(len(weight), -1)
            standard = (each - each.mean(1, keepdims=True)) / each.std(1, keepdims=True)
            weight = standard.reshape(weight.shape)
        state[name] = torch.from_numpy(weight)
    reference.double().load_state_dict(state)
    return reference


@torch.no_grad()
@pytest.mark.parametrize(
    ("backbone", "stage", "grid"),
    [("resnet18", 1, (8, 10)), ("resnet18", 4, (1, 2)), ("resnet34", 2, (4, 5)),
     ("resnet50", 2, (4, 5))],
)  # fmt: skip
def test_hybrid_is_torchvisions_feature_map(
    backbone: str, stage: int, grid: tuple[int, int]
) -> None:
    """With the standardised weights in it, torchvision's own ResNet gives the same features."""
    embedding = _built((3, 31, 37), backbone=backbone, stage=stage).double()
    for norm in (m for m in embedding.modules() if isinstance(m, nn.GroupNorm)):
        nn.init.normal_(norm.weight, mean=1.0, std=0.2)
        nn.init.normal_(norm.bias, std=0.2)
    reference = _reference(backbone, stage, embedding.features)
    images = torch.randn(2, 3, 31, 37, dtype=torch.float64)
    expected = reference(images)
    features = embedding.features(images)
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=1e-5)
    weight = embedding.projection.weight[:, :, 0, 0]
    tokens = torch.einsum("bchw,dc->bhwd", features, weight).flatten(1, 2)
    answer = embedding(images)
    assert answer.grid == embedding.grid == grid
    torch.testing.assert_close(answer.tokens_BND, tokens)


@torch.no_grad()
def test_a_weights_scale_and_offset_do_not_matter() -> None:
    """Standardised convolutions see only the pattern of their weights."""
    embedding = _built((1, 32, 32)).double()
    images = torch.randn(2, 1, 32, 32, dtype=torch.float64)
    before = embedding(images).tokens_BND
    for convolution in (m for m in embedding.features.modules() if isinstance(m, nn.Conv2d)):
        convolution.weight.mul_(3.0).add_(0.5)
    torch.testing.assert_close(embedding(images).tokens_BND, before, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("side", "stage"), [(16, 1), (28, 1), (32, 1), (64, 2), (96, 3), (128, 2), (224, 3), (384, 4)]
)
def test_the_default_stage(side: int, stage: int) -> None:
    """By default the grid comes closest to 8 a side, or 14 for images from 128 pixels on."""
    traits = DataTraits(3, side, side, num_classes=2, mirror_symmetric=True)
    assert HybridConfig().resolved_for(traits).stage == stage


def test_later_stages_are_left_out() -> None:
    """Only stem, stages up to the chosen one and the projection hold weights, all of them real."""
    for stage in (1, 2, 3):
        embedding = _built((3, 32, 32), stage=stage)
        reference = list(torchvision.models.resnet18().children())[: 4 + stage]
        expected = sum(p.numel() for child in reference for p in child.parameters())
        assert sum(p.numel() for p in embedding.features.parameters()) == expected
        assert {p.device.type for p in embedding.parameters()} == {"cpu"}

"""The ViT with rotary positions against timm, and its settings."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch

from patchline.pipeline.errors import ConfigError
from patchline.plugins.models.rope_vit import RopeVitConfig
from tests.plugins.model_parity import (
    Tensors,
    assert_parity,
    built,
    parameters_of,
    random_images,
    randomise,
    timm_names,
    traits,
    values_of,
)

DEPTH = 3


def _our_names(tensors: Tensors) -> Tensors:
    """Give every block its part of the mixed frequencies, and rename."""
    ours = timm_names(tensors)
    frequencies = ours.pop("rope.freqs", None)
    if frequencies is not None:
        for block, frequencies_2HF in enumerate(frequencies.unbind(1)):
            ours[f"blocks.{block}.attention.frequencies_2HF"] = frequencies_2HF
    return ours


def _ours(side: int = 224, **settings: Any) -> Any:
    embedding = {"name": "conv", "patch_size": 16}
    return built("rope_vit", side, 1000, size="s", embedding=embedding, layer_scale=1.0, **settings)


@pytest.mark.parametrize(
    ("architecture", "frequencies"),
    [
        ("vit_small_patch16_rope_224", "axial"),
        ("vit_small_patch16_rope_mixed_224", "mixed"),
    ],
)
@pytest.mark.parametrize("depth", [DEPTH, pytest.param(12, marks=pytest.mark.slow)])
def test_equals_timm(architecture: str, frequencies: str, depth: int) -> None:
    """With the weights of timm's models, logits and all gradients come out."""
    theirs = timm.create_model(architecture, pretrained=False, depth=depth)
    randomise(theirs)
    ours = _ours(frequencies=frequencies, depth=depth)
    assert parameters_of(ours) == parameters_of(theirs)
    assert_parity(ours, theirs, _our_names, (2, 224))


@pytest.mark.parametrize(
    ("architecture", "frequencies"),
    [
        ("vit_small_patch16_rope_ape_224", "axial"),
        ("vit_small_patch16_rope_mixed_ape_224", "mixed"),
    ],
)
def test_equals_timm_with_absolute_positions(architecture: str, frequencies: str) -> None:
    """With learned positions as well; in timm the class token has none, which is one of zeros."""
    theirs: Any = timm.create_model(architecture, pretrained=False, depth=DEPTH, img_size=96)
    randomise(theirs)
    name = "position_embedding.positions_1ND"

    def names(tensors: Tensors) -> Tensors:
        """Put the gradient of the class token's position in front: that of the token itself."""
        ours = _our_names(tensors)
        return {**ours, name: torch.cat([ours["class_token.token_11D"], ours[name]], dim=1)}

    weights = names(values_of(theirs))
    weights[name][:, 0] = 0.0
    ours = _ours(96, frequencies=frequencies, depth=DEPTH, absolute_positions=True)
    assert_parity(ours, theirs, names, (2, 96), weights=weights)


@torch.no_grad()
def test_the_class_token_stands_at_the_first_place() -> None:
    """Without absolute positions the class token is not turned: a place of (0, 0)."""
    model = built("rope_vit", frequencies="axial", depth=1)
    places: list[torch.Tensor] = []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: places.append(inputs[1]))
    model(random_images(1, 32))
    assert places[0][:3].tolist() == [[0, 0], [0, 0], [1, 0]]
    assert places[0][-1].tolist() == [7, 7]


@pytest.mark.parametrize("frequencies", ["axial", "mixed"])
def test_patch_dropout_keeps_the_places_of_what_stays(frequencies: str) -> None:
    """In training every kept token is turned by its own place."""
    model = built("rope_vit", frequencies=frequencies, depth=2, patch_dropout=0.5).train()
    inputs: list[Any] = []
    model.blocks[0].register_forward_pre_hook(lambda _, given: inputs.append(given))
    torch.manual_seed(4)
    logits_BK = model(random_images(2, 32))
    ((tokens_BMD, places_BM2),) = inputs
    assert tokens_BMD.shape[:2] == places_BM2.shape[:2] == (2, 1 + 32)
    assert torch.unique(places_BM2[0, 1:], dim=0).shape[0] == 32
    patches = model.patch_embedding(random_images(2, 32)).tokens_BND
    index_BM = (places_BM2[..., 1] * 8 + places_BM2[..., 0]).long()[:, 1:]
    for image in range(2):
        torch.testing.assert_close(tokens_BMD[image, 1:], patches[image, index_BM[image]])
    logits_BK.sum().backward()


@pytest.mark.parametrize(
    ("embed_dim", "num_heads", "head_dim"), [(90, 3, 30), (96, 16, 6), (95, 5, 19)]
)
def test_refuses_heads_that_pairs_do_not_fill(
    embed_dim: int, num_heads: int, head_dim: int
) -> None:
    """A head whose size is no multiple of 4 is refused with both settings and the size."""
    config = RopeVitConfig(embed_dim=embed_dim, num_heads=num_heads)
    expected = (
        rf"model\.embed_dim {embed_dim} and model\.num_heads {num_heads} give heads of "
        rf"dimension {head_dim}, .* multiple of 4\. Change one"
    )
    with pytest.raises(ConfigError, match=expected):
        config.resolved_for(traits())


def test_registers_have_no_position_and_learn() -> None:
    """They join the class token at the origin, and every register gets a gradient."""
    model = built("rope_vit", depth=2, num_registers=3)
    seen: list[Any] = []
    model.blocks[0].register_forward_pre_hook(lambda _block, given: seen.append(given))
    model(random_images(2, 32)).square().sum().backward()
    tokens_BND, places_N2 = seen[0]
    assert tokens_BND.shape[1] == len(places_N2) == 1 + 3 + 64
    assert not places_N2[:4].any()
    assert places_N2[4:].unique(dim=0).shape == (64, 2)
    assert torch.equal(tokens_BND[0, 1:4], model.registers.registers_1RD[0])
    assert (model.registers.registers_1RD.grad.abs().sum(dim=2) > 0).all()

"""The ViTs: published sizes, what settings reach, and what is refused.

Their functions are held against public implementations in `test_model_parity`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.layers.activations import QuickGELU
from patchline.pipeline.models.layers.mlp import MLP
from patchline.pipeline.models.model_building import build_on_meta
from patchline.pipeline.plugin_system.plugin_loader import load_model
from tests.plugins.model_parity import built, image_spec, random_images, traits

_CONV_16 = {"name": "conv", "patch_size": 16}
_THREE = {"name": "cct", "kernel_size": 3}


def _on_meta(name: str, side: int = 32, num_classes: int = 5, **settings: Any) -> Any:
    choice = ModelChoice.model_validate({"name": name, **settings})
    return build_on_meta(choice, image_spec(side), num_classes)


@pytest.mark.parametrize(
    ("name", "size", "side", "embedding", "num_classes", "millions"),
    [
        ("simple_vit", "s", 224, _CONV_16, 1000, 21.974632),
        ("vit_small_data", "paper", 64, {"name": "conv"}, 200, 2.8),
        ("cct", "2", 32, {**_THREE, "num_layers": 2}, 10, 0.28),
        ("cct", "4", 32, {**_THREE, "num_layers": 2}, 10, 0.48),
        ("cct", "7", 32, {**_THREE, "num_layers": 1}, 10, 3.76),
    ],
)
def test_has_the_published_number_of_parameters(
    name: str, size: str, side: int, embedding: Any, num_classes: int, millions: float
) -> None:
    """The models are as large as in their papers, as exactly as these say."""
    model = _on_meta(name, side, num_classes, size=size, patch_embedding=embedding)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters / 1e6 == pytest.approx(millions, abs=0.1 if millions == 2.8 else 0.0051)


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["class_token", "average"])
def test_a_flip_at_test_time_averages_both_views(pooling: str) -> None:
    """Logits are the mean of those of the image and its mirror image; training does not change."""
    plain = built("vit", depth=2, pooling=pooling)
    flipped = built("vit", depth=2, pooling=pooling, test_time_flip=True)
    images = random_images(4, 32)
    expected = (plain(images) + plain(images.flip(3))) / 2
    torch.testing.assert_close(flipped(images), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(plain(images), expected, atol=1e-3)
    torch.testing.assert_close(flipped.train()(images), plain.train()(images))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("vit", {"num_heads": 5}, r"model\.num_heads 5 .* model\.embed_dim 96"),
        ("simple_vit", {"embed_dim": 98, "num_heads": 2}, r"98 is not a multiple of 4, .*100\.$"),
        ("vit_small_data", {"num_heads": 5}, r"model\.num_heads 5 does not divide"),
        ("cct", {"embed_dim": 130, "positions": "sine_cosine"}, "of 4, .* Choose 132"),
        ("rope_vit", {"num_heads": 16}, r"give heads of dimension 6, .* multiple of 4\. Change"),
    ],
)
def test_dimensions_that_do_not_fit_are_refused(
    name: str, settings: dict[str, Any], words: str
) -> None:
    """Settings that do not divide are refused with both settings, both numbers and a remedy."""
    with pytest.raises(ConfigError, match=words):
        load_model(name).config_class(**settings).resolved_for(traits())


@pytest.mark.parametrize("name", ["vit", "vit_registers", "rope_vit"])
def test_every_norm_and_mlp_has_the_setting(name: str) -> None:
    """The epsilon reaches the norms of blocks, embedding and pooling; the activation the MLPs."""
    further: dict[str, Any] = {} if name == "rope_vit" else {"embedding_norm": True}
    further |= {"pooling": "attention"} if name == "vit" else {}
    model = _on_meta(name, depth=2, norm_epsilon=1e-3, activation="quick_gelu", **further)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert (len(norms), {norm.eps for norm in norms}) == (2 * 2 + 1 + len(further), {1e-3})
    mlps = [module for module in model.blocks.modules() if isinstance(module, MLP)]
    assert [type(mlp.activation) for mlp in mlps] == [QuickGELU, QuickGELU]


def _first_block(model: Any) -> list[Any]:
    """Return a list that gets what the first block is given."""
    given: list[Any] = []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: given.append(inputs))
    return given


def test_patch_dropout_keeps_the_class_token_and_the_registers() -> None:
    """In training half of the patches go, and none of the tokens in front."""
    model = built("vit_registers", depth=1, patch_dropout=0.5, num_registers=3)
    given = _first_block(model)
    model.train()(random_images(2, 32))
    model.eval()(random_images(2, 32))
    assert [inputs[0].shape[1] for inputs in given] == [1 + 3 + 32, 1 + 3 + 64]


def test_patch_dropout_keeps_the_places_of_what_stays() -> None:
    """In training every kept token is turned by its own place."""
    model = built("rope_vit", depth=2, patch_dropout=0.5).train()
    given = _first_block(model)
    model(random_images(2, 32)).sum().backward()
    ((tokens_BMD, places_BM2),) = given
    assert tokens_BMD.shape[:2] == places_BM2.shape[:2] == (2, 1 + 32)
    patches = model.patch_embedding(random_images(2, 32)).tokens_BND
    index_BM = (places_BM2[..., 1] * 8 + places_BM2[..., 0]).long()[:, 1:]
    for image in range(2):
        assert len(set(index_BM[image].tolist())) == 32
        torch.testing.assert_close(tokens_BMD[image, 1:], patches[image, index_BM[image]])


def test_registers_have_no_place_and_learn() -> None:
    """They join the class token at the origin, and every register gets a gradient."""
    model = built("rope_vit", depth=2, num_registers=3)
    given = _first_block(model)
    model(random_images(2, 32)).square().sum().backward()
    ((tokens_BND, places_N2),) = given
    assert not places_N2[:4].any()
    assert places_N2[4:].unique(dim=0).shape == (64, 2)
    assert torch.equal(tokens_BND[0, 1:4], model.registers.registers_1RD[0])
    assert (model.registers.registers_1RD.grad.abs().sum(dim=2) > 0).all()


def test_cct_starts_and_regularises_as_published() -> None:
    """Positions have a standard deviation of 0.2; attention is dropped, and blocks up to 0.1."""
    model = built("cct", positions="learned", depth=3)
    positions_1ND = model.position_embedding.positions_1ND
    assert float(positions_1ND.detach().std()) == pytest.approx(0.2, rel=0.1)
    assert [block.attention.dropout for block in model.blocks] == [0.1] * 3
    rates = [block.stochastic_depth.drop_probability for block in model.blocks]
    assert rates == pytest.approx([0.0, 0.05, 0.1])


def test_a_single_patch_that_does_not_see_itself_learns() -> None:
    """Where almost all patches are left out, every gradient is still a number."""
    model = built("vit_small_data", patch_dropout=0.99, depth=2).train()
    assert float(model.blocks[0].attention.log_sharpness.detach()) == 0.0
    model(random_images(4, 32)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name

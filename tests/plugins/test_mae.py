"""The masked autoencoder: the published loss, nothing leaks, and every ViT can be its encoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.plugin_system.plugin_settings import resolve_settings
from patchline.pipeline.training.recipe.objectives import build_objective
from patchline.plugins.objectives.mae_module import MaskedAutoencoder
from tests.plugins.model_parity import image_spec, traits

IMAGE = image_spec(32, 48)
SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_dim": 48}
ENCODERS = ("vit", "vit_registers", "simple_vit", "rope_vit", "vit_small_data", "cct")


def _config(model: dict[str, Any], objective: dict[str, Any]) -> RunConfig:
    flags = {"model": {**SMALL, **model}, "objective": {"name": "mae", **objective}}
    return resolve_settings(config_files.build_config(None, flags=flags), traits(32, 48))


def _module(model: dict[str, Any] | None = None, **objective: Any) -> MaskedAutoencoder:
    config = _config(model or {}, objective)
    torch.manual_seed(0)
    built = build_model(config.model, IMAGE, 0)
    module = build_objective(config, IMAGE, 0).training_module(built)
    assert isinstance(module, MaskedAutoencoder)
    return module.eval()


def _images(batch: int = 3) -> torch.Tensor:
    shape = (batch, IMAGE.channels, IMAGE.height, IMAGE.width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("normalized", [True, False])
@torch.no_grad()
def test_the_loss_is_the_published_one(*, normalized: bool) -> None:
    """The squared error of hidden patches alone, normalised as in section 4.1 of the paper."""
    module, images = _module(normalized_pixels=normalized), _images()
    order, visible = module._drawn(images)
    predicted = module._predicted(images, order, visible)
    size = (module.patch_height, module.patch_width)
    columns = torch.nn.functional.unfold(images, size, stride=size)  # channels, then pixels
    patches = columns.shape[2]
    target = columns.reshape(len(images), 3, -1, patches).permute(0, 3, 2, 1).flatten(2)
    if normalized:
        target = (target - target.mean(-1, keepdim=True)) / (
            target.var(-1, keepdim=True) + 1e-6
        ).sqrt()
    error = (predicted - target).square().mean(-1)
    hidden = torch.ones_like(error).scatter(1, order[:, :visible], 0.0)
    expected = (error * hidden).sum() / hidden.sum()
    torch.testing.assert_close(module(images).mean(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("embedding", ["conv_stem", "shifted", "hybrid"])
@torch.no_grad()
def test_hidden_pixels_do_not_leak(embedding: str) -> None:
    """Other pixels in the hidden patches change no prediction, whatever the embedding sees."""
    module = _module({"patch_embedding": {"name": embedding}})
    images = _images()
    order, visible = module._drawn(images)
    hidden = module._hidden(order, visible)
    changed = module._joined(torch.where(hidden, 9.0, module._patches(images)), module.grid)
    assert not torch.equal(images, changed)
    expected = module._predicted(images, order, visible)
    assert torch.equal(module._predicted(changed, order, visible), expected)
    all_seen = module._joined(torch.where(~hidden, 9.0, module._patches(images)), module.grid)
    assert not torch.allclose(module._predicted(all_seen, order, visible), expected)


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_visible_patches_are_encoded_at_their_places(name: str) -> None:
    """All patches, named in any order, give the tokens of the whole image in that order."""
    model: Any = _module({"name": name}).model
    images = _images()
    whole = model.encode(images)
    rows, columns = model.patch_embedding.grid
    patches = rows * columns
    prefix = whole.shape[1] - patches
    places = torch.stack([torch.randperm(patches) for _ in images])
    found = model.encode(images, places)
    pairs = zip(whole, places, strict=True)
    expected = torch.stack([tokens[prefix + order] for tokens, order in pairs])
    assert torch.allclose(found[:, prefix:], expected, atol=1e-5)
    assert torch.allclose(found[:, :prefix], whole[:, :prefix], atol=1e-5)
    assert model.encode(images, places[:, :5]).shape == (len(images), prefix + 5, whole.shape[2])


@torch.no_grad()
def test_the_mask_is_drawn_in_training_alone() -> None:
    """In training each image and step has its own hidden patches, of the number that is set."""
    module, images = _module(mask_ratio=0.6), _images(4)
    (order, visible), (again, _) = module._drawn(images), module._drawn(images)
    assert torch.equal(order, again)
    assert (order[0] == order).all()
    module.train()
    drawn, _ = module._drawn(images)
    patches = order.shape[1]
    assert visible == patches - round(0.6 * patches)
    assert len({tuple(row) for row in drawn.tolist()}) == 4
    assert (drawn.sort(dim=1).values == torch.arange(patches)).all()


def test_a_model_that_cannot_hide_patches_is_refused() -> None:
    """The error names the models that can."""
    objective = build_objective(_config({}, {}), IMAGE, 0)
    with pytest.raises(ConfigError, match="cannot encode visible patches alone"):
        objective.training_module(nn.Flatten())
    with pytest.raises(ConfigError, match="decoder_heads 5 does not divide"):
        _module(decoder_dim=36, decoder_heads=5)


@pytest.mark.parametrize(
    "training",
    [{"folds": 3}, {"final_model": "refit"}, {"mixup": 0.2}, {"class_balance": "weights"}],
    ids=lambda value: next(iter(value)),
)
def test_settings_that_need_labels_are_refused(training: dict[str, Any]) -> None:
    """The error names the setting and the objective."""
    [key] = training
    with pytest.raises(ConfigError, match=f"training.{key} is .*, but objective.name mae"):
        config_files.build_config(None, flags={"objective": {"name": "mae"}, "training": training})

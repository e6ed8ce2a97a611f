"""Initial weights in a new model: the same function where they fit, a table of what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline import config_files
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.training.initial_weights.loading import Assignment, load_into, summary
from patchline.pipeline.training.initial_weights.record import TENSORS_FILE, InitialWeights
from patchline.pipeline.workspace.files.sealed_files import write_tensors
from patchline.plugin_api import ImageSpec

SETTINGS: dict[str, Any] = {
    "name": "vit",
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 32,
    "patch_embedding": {"name": "conv", "patch_size": 4},
}
CLASSES = ("ant", "bee", "cat")
PIXELS_BCHW = torch.linspace(-1, 1, 2 * 3 * 16 * 16).view(2, 3, 16, 16)


def built(classes: int = 3, side: int = 16, channels: int = 3, **changes: Any) -> nn.Module:
    """Return a small model with random weights, none of them zero or one."""
    choice = config_files.validate_config(
        {"model": config_files.merge_settings(SETTINGS, changes)}
    ).model
    image = ImageSpec(
        channels=1 if channels == 1 else 3,
        height=side,
        width=side,
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
        resize="crop",
    )
    model = build_model(choice, image, classes)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def kept(model: nn.Module, folder: Path, **changes: Any) -> InitialWeights:
    """Write a model's weights as initial weights of 16 pixels, and return their description."""
    write_tensors(folder / TENSORS_FILE, model.state_dict())
    described: dict[str, Any] = {
        "reference": "/x/old.safetensors",
        "kind": "file",
        "sha256": "0" * 64,
        "layout": "some ViT",
        "settings": SETTINGS,
        "channels": 3,
        "image_size": 16,
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
        "classes": CLASSES,
    }
    return InitialWeights.model_validate({**described, **changes})


def actions(done: list[Assignment]) -> dict[str, str]:
    """Return what happened, by weight."""
    return {each.weight: each.action for each in done}


def test_classes_are_matched_by_name(tmp_path: Path) -> None:
    """With the same classes every weight is used, and the logits are equal, bit for bit.

    Otherwise outputs move with their classes; a new class keeps its random weights.
    """
    old, same, new = built(), built(), built(4)
    used = actions(load_into(same, kept(old, tmp_path), tmp_path, CLASSES))
    assert used == dict.fromkeys(same.state_dict(), "used")
    assert torch.equal(same(PIXELS_BCHW), old(PIXELS_BCHW))
    fresh = new.state_dict()["head.weight"].clone()
    done = load_into(new, kept(old, tmp_path), tmp_path, ("bee", "cat", "dog", "ant"))
    torch.testing.assert_close(new(PIXELS_BCHW)[:, [3, 0, 1]], old(PIXELS_BCHW))
    assert torch.equal(new.state_dict()["head.weight"][2], fresh[2])
    assert actions(done)["head.weight"] == "matched by class"


@pytest.mark.parametrize("classes", [("owl", "pig"), None])
def test_another_head_is_initialized(tmp_path: Path, classes: tuple[str, ...] | None) -> None:
    """Without a class in common, or with classes of unknown names and number, it stays random."""
    new = built(2)
    before = new.state_dict()["head.weight"].clone()
    found = kept(built(), tmp_path, classes=classes and CLASSES)
    done = load_into(new, found, tmp_path, ("owl", "pig"))
    assert torch.equal(new.state_dict()["head.weight"], before)
    assert actions(done)["head.weight"] == "initialized"
    assert "initialized" in summary(found, done)
    hidden = kept(built(head="tanh"), tmp_path)
    assert (
        actions(load_into(built(), hidden, tmp_path, CLASSES))["head.hidden.weight"] == "not used"
    )


@pytest.mark.parametrize("classes", [CLASSES, None])
def test_an_encoder_starts_from_a_classifier(
    tmp_path: Path, classes: tuple[str, ...] | None
) -> None:
    """To continue with pre-training, the head is dropped and listed; all else is used."""
    old, new = built(), built(0)
    done = load_into(new, kept(old, tmp_path, classes=classes), tmp_path, ())
    assert {each.weight: each.shape for each in done if each.action == "not used"} == {
        "head.weight": "3x24",
        "head.bias": "3",
    }
    assert {each.action for each in done} == {"used", "not used"}
    models: list[Any] = [new, old]
    ours, theirs = (model.encode(PIXELS_BCHW) for model in models)
    assert torch.equal(ours, theirs)
    again = load_into(built(0), kept(new, tmp_path, classes=()), tmp_path, ())
    assert {each.action for each in again} == {"used"}


def test_positions_and_patches_are_resized(tmp_path: Path) -> None:
    """For larger images positions are those of the layer's own resizing; patches change size."""
    old, new = built(), built(side=24, patch_embedding={"patch_size": 3})
    done = actions(load_into(new, kept(old, tmp_path), tmp_path, CLASSES))
    positions: Any = old.get_submodule("position_embedding")
    resized = new.state_dict()["position_embedding.positions_1ND"]
    torch.testing.assert_close(resized, positions.on_grid((8, 8)))
    assert new.state_dict()["patch_embedding.projection.weight"].shape == (24, 3, 3, 3)
    assert done["position_embedding.positions_1ND"] == "resized"
    assert done["patch_embedding.projection.weight"] == "resized"


def test_grey_images_give_the_same_tokens(tmp_path: Path) -> None:
    """A kernel for one channel sees a grey image as the kernel for three saw it three times."""
    old, new = built(), built(channels=1)
    load_into(new, kept(old, tmp_path), tmp_path, CLASSES)
    grey_B1HW = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(new(grey_B1HW), old(grey_B1HW.expand(-1, 3, -1, -1)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 3}, r"has no weight 'blocks\.2\.\S+', which the model needs"),
        ({"depth": 1}, r"has the weight 'blocks\.1\.\S+', which the model does not have"),
        ({"mlp_dim": 48}, r"shape 48x24 in the model, but 32x24 in model\.init old\.safetensors"),
    ],
)
def test_what_does_not_fit_is_an_error(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """A weight that is missing, left over or of another shape is named."""
    new = built(**changes)
    with pytest.raises(ConfigError, match=words):
        load_into(new, kept(built(), tmp_path), tmp_path, CLASSES)

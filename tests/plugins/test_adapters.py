"""The models of torchvision and timm behind our contract, and what they refuse."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn

from patchline.pipeline.config_files import validate_config
from patchline.pipeline.errors import ConfigError, PluginError
from patchline.pipeline.models.model_building import build_model
from patchline.plugins.models.timm import TimmConfig
from patchline.plugins.models.torchvision import TorchvisionConfig, names
from tests.plugins.model_parity import image_spec, random_images, traits


def _built(library: str, architecture: str, side: int, channels: int = 3, **settings: Any) -> Any:
    torch.manual_seed(0)
    choice = validate_config(
        {"model": {"name": library, "architecture": architecture, **settings}}
    ).model
    return build_model(choice, image_spec(side, channels=channels), 5).eval()


def _resolved(library: str, architecture: str, height: int = 224, width: int | None = None) -> Any:
    config_class = TimmConfig if library == "timm" else TorchvisionConfig
    return config_class(architecture=architecture).resolved_for(traits(height, width))


@pytest.mark.slow  # networks of other libraries take seconds to initialise
@torch.no_grad()
@pytest.mark.parametrize(
    ("library", "architecture", "side", "settings"),
    [
        ("torchvision", "mobilenet_v3_small", 48, {}),
        ("torchvision", "vit_b_16", 32, {"image_size": 32}),
        ("torchvision", "googlenet", 64, {"aux_logits": False, "init_weights": False}),
        ("timm", "vit_tiny_patch16_224", 32, {"img_size": 32}),
        ("timm", "convnext_atto", 64, {}),
    ],
)
def test_equals_the_library(
    library: str, architecture: str, side: int, settings: dict[str, Any]
) -> None:
    """From the same state the logits are the library's own, bit for bit."""
    ours = _built(library, architecture, side)
    build: Any = timm.create_model if library == "timm" else torchvision.models.get_model
    theirs = build(architecture, num_classes=5, **settings).eval()
    nn.init.ones_(list(ours.network.parameters())[-1])  # vit_b_16 starts with a head of zeros
    theirs.load_state_dict(ours.network.state_dict())
    images = random_images(2, side)
    assert torch.equal(ours(images), theirs(images))


@torch.no_grad()
@pytest.mark.parametrize(
    ("library", "architecture"),
    [("torchvision", "mobilenet_v3_small"), ("timm", "vit_tiny_patch16_224")],
)
def test_takes_greyscale_images(library: str, architecture: str) -> None:
    """Images of one channel are classified; to torchvision they are shown as grey RGB."""
    model = _built(library, architecture, 64, channels=1)
    images = random_images(2, 64)[:, :1]
    assert model(images).shape == (2, 5)
    if library == "torchvision":
        assert torch.equal(model(images), model.network(images.repeat(1, 3, 1, 1)))


def test_hands_the_regularisation_to_timm() -> None:
    """Dropout and stochastic depth arrive in the network, if it knows them."""
    network = _built("timm", "vit_tiny_patch16_224", 32, dropout=0.3, stochastic_depth=0.2).network
    assert network.head_drop.p == 0.3
    assert network.blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)
    assert _resolved("timm", "ghostnet_050")


@pytest.mark.slow
def test_a_model_of_each_tenth_family_can_be_used() -> None:
    """It takes 224x224 images, or says why not: two of timm take images of their own size alone."""
    models = torchvision.models
    known = {getattr(models, name).__module__: ("torchvision", name) for name in names()}
    for family in timm.list_modules():
        for name in timm.list_models(module=family)[:1]:
            known[family] = ("timm", name)
    refused = {"byobnet", "crossvit"}
    for family in refused:
        with pytest.raises(ConfigError, match="cannot be built for 224x224 images"):
            _resolved(*known[family])
    for family in {*list(known)[::10]} - refused:
        assert _resolved(*known[family]).architecture == known[family][1]


@pytest.mark.parametrize(
    ("library", "architecture", "words"),
    [
        ("torchvision", "vit_b16", "is 'vit_b16', but torchvision.*Did you mean.*vit_b_16"),
        ("timm", "convnext_tiiny", "is 'convnext_tiiny', but timm.*Did you mean.*convnext_tiny"),
        ("torchvision", "0000000", "Try resnet18"),
        ("torchvision", "list_models", "no classification model"),
    ],
)
def test_refuses_an_unknown_name_with_the_nearest(
    library: str, architecture: str, words: str
) -> None:
    """Without a similar name the error gives an example."""
    with pytest.raises(ConfigError, match=words):
        _resolved(library, architecture, 64)


@pytest.mark.parametrize(
    ("library", "architecture", "height", "width", "reason"),
    [
        ("torchvision", "vit_b_16", 40, 40, "indivisible by patch size"),
        ("torchvision", "vit_b_16", 64, 32, "it takes square images only"),
        ("torchvision", "alexnet", 16, 16, "[Tt]oo small"),
        ("timm", "vit_tiny_patch16_224", 8, 8, "."),
    ],
)
def test_refuses_a_size_that_the_model_cannot_take(
    library: str, architecture: str, height: int, width: int, reason: str
) -> None:
    """The error names model and size, gives the library's reason and a way out."""
    sentence = f"{library}'s {architecture} cannot be built for {height}x{width} images: "
    with pytest.raises(ConfigError, match=f"{sentence}.*{reason}.*Choose another") as caught:
        _resolved(library, architecture, height, width)
    assert re.search(r"model\.architecture|data\.image_size", str(caught.value))


@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize(
    ("embedding", "words"),
    [
        (
            {"name": "conv"},
            r"name is conv, but the model .* takes no patch embedding\. Set it to n",
        ),
        ({"patch_size": 4}, r"model\.patch_embedding\.patch_size is set, but the"),
    ],
)
def test_takes_no_patch_embedding(library: str, embedding: dict[str, Any], words: str) -> None:
    """One that is named, or a setting of one, is refused."""
    with pytest.raises(ConfigError, match=words):
        validate_config({"model": {"name": library, "patch_embedding": embedding}})


def test_says_that_timm_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without timm installed, the error says so and how to install it; torchvision still works."""
    monkeypatch.setitem(sys.modules, "timm", None)
    expected = r"'timm' needs the package timm, which is not installed\. .*pip install"
    use: Any
    for use in (_resolved, _built):
        with pytest.raises(PluginError, match=expected):
            use("timm", "resnet18", 64)
    assert _resolved("torchvision", "resnet18", 64)

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

from patchline.pipeline.config_files import validated
from patchline.pipeline.errors import ConfigError, PluginError
from patchline.pipeline.models.model_building import build_model, build_on_meta
from patchline.pipeline.plugin_system.plugin_settings import resolve_settings
from patchline.plugins.models.timm import TimmConfig
from patchline.plugins.models.torchvision import TorchvisionConfig, names
from tests.plugins.model_parity import image_spec, random_images, traits

pytestmark = pytest.mark.slow  # builds models of other libraries

LIBRARIES = ("torchvision", "timm")
_QUICK = {"alexnet", "googlenet", "inception_v3", "maxvit_t", "swin_t", "vit_b_16", "convnext_tiny"}
"""Architectures of torchvision that the fast tests try: one of each way to build them."""


def _choice(library: str, architecture: str, **settings: Any) -> Any:
    """Return a model choice as the command line makes it."""
    model = {"name": library, "architecture": architecture, **settings}
    return validated({"model": model}).model


def _built(library: str, architecture: str, side: int, channels: int = 3, **settings: Any) -> Any:
    torch.manual_seed(0)
    spec = image_spec(side, channels=channels)
    return build_model(_choice(library, architecture, **settings), spec, 5).eval()


def _config(library: str, architecture: str) -> TimmConfig | TorchvisionConfig:
    config_class = TimmConfig if library == "timm" else TorchvisionConfig
    return config_class(architecture=architecture)


@torch.no_grad()
@pytest.mark.parametrize(
    ("architecture", "side"),
    [("resnet18", 64), ("vit_b_16", 32), ("mobilenet_v3_small", 48), ("googlenet", 64)],
)
def test_equals_torchvision(architecture: str, side: int) -> None:
    """From the same state the logits are torchvision's own, bit for bit."""
    ours = _built("torchvision", architecture, side)
    settings: dict[str, Any] = {"weights": None, "num_classes": 5}
    if architecture == "vit_b_16":
        settings["image_size"] = side
    if architecture == "googlenet":
        settings |= {"aux_logits": False, "init_weights": False}
    theirs = getattr(torchvision.models, architecture)(**settings).eval()
    for model in (ours.network, theirs):
        nn.init.ones_(list(model.parameters())[-1])  # vit_b_16 starts with a head of zeros
    theirs.load_state_dict(ours.network.state_dict())
    images = random_images(2, side)
    assert torch.equal(ours(images), theirs(images))
    assert ours(images).shape == (2, 5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("architecture", "side", "settings"),
    [
        ("vit_tiny_patch16_224", 32, {"img_size": 32}),
        ("resnet18", 64, {}),
        ("convnext_atto", 64, {}),
        ("swin_tiny_patch4_window7_224", 56, {"img_size": 56}),
    ],
)
def test_equals_timm(architecture: str, side: int, settings: dict[str, Any]) -> None:
    """From the same state the logits are timm's own, bit for bit."""
    ours = _built("timm", architecture, side)
    theirs = timm.create_model(architecture, pretrained=False, num_classes=5, **settings).eval()
    theirs.load_state_dict(ours.network.state_dict())
    images = random_images(2, side)
    assert torch.equal(ours(images), theirs(images))
    assert ours(images).shape == (2, 5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("library", "architecture"),
    [("torchvision", "resnet18"), ("timm", "resnet18"), ("timm", "vit_tiny_patch16_224")],
)
def test_takes_greyscale_images(library: str, architecture: str) -> None:
    """Images of one channel are classified; to torchvision they are shown as grey RGB."""
    model = _built(library, architecture, 64, channels=1)
    images = random_images(2, 64)[:, :1]
    assert model(images).shape == (2, 5)
    assert float(model(images).std()) > 0
    if library == "torchvision":
        assert torch.equal(model(images), model.network(images.repeat(1, 3, 1, 1)))


def test_hands_the_regularisation_to_timm() -> None:
    """Dropout and stochastic depth arrive in the network."""
    network = _built("timm", "vit_tiny_patch16_224", 32, dropout=0.3, stochastic_depth=0.2).network
    assert network.head_drop.p == 0.3
    assert network.blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)


@pytest.mark.parametrize("architecture", ["vgg11", "densenet121", "ghostnet_050", "inception_v3"])
def test_models_of_timm_without_stochastic_depth_can_be_used(architecture: str) -> None:
    """A setting that stays at zero does not keep away a model that does not know it."""
    config = _config("timm", architecture)
    assert config.resolved_for(traits(224)) is config


@pytest.mark.parametrize(
    "architecture",
    [name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names()],
)
def test_every_name_of_torchvision_can_be_used(architecture: str) -> None:
    """Every classification model of torchvision takes 224x224 images."""
    config = _config("torchvision", architecture)
    assert config.resolved_for(traits(224)) is config


_KNOWN_TO_REFUSE = {"byobnet", "crossvit"}
"""Families of timm whose first model takes images of its own size alone."""


@pytest.mark.slow
@pytest.mark.parametrize("family", timm.list_modules())
def test_every_family_of_timm_can_be_used(family: str) -> None:
    """The first model of each of timm's families takes 224x224 images, or says why not."""
    for architecture in timm.list_models(module=family)[:1]:
        config = _config("timm", architecture)
        if family in _KNOWN_TO_REFUSE:
            with pytest.raises(ConfigError, match="cannot be built for 224x224 images"):
                config.resolved_for(traits(224))
        else:
            assert config.resolved_for(traits(224)) is config


@pytest.mark.parametrize(
    ("library", "wrong", "right"),
    [
        ("torchvision", "resnet19", "resnet18"),
        ("torchvision", "vit_b16", "vit_b_16"),
        ("timm", "vit_tiny_patch16_225", "vit_tiny_patch16_224"),
        ("timm", "convnext_tiiny", "convnext_tiny"),
    ],
)
def test_refuses_an_unknown_name_with_the_nearest(library: str, wrong: str, right: str) -> None:
    """The error has the name that was given, the library, and a similar name that exists."""
    with pytest.raises(ConfigError) as caught:
        _config(library, wrong).resolved_for(traits(64))
    text = str(caught.value)
    assert text.startswith(f"model.architecture is '{wrong}', but {library}")
    assert "Did you mean" in text
    assert right in text


@pytest.mark.parametrize("library", LIBRARIES)
def test_refuses_a_name_that_resembles_nothing(library: str) -> None:
    """Without a similar name the error gives an example."""
    with pytest.raises(ConfigError, match=r"Try (resnet18|vit_tiny)"):
        _config(library, "0000000").resolved_for(traits(64))


@pytest.mark.parametrize(
    "name", ["VisionTransformer", "list_models", "segmentation", "quantization"]
)
def test_only_models_count_as_names_of_torchvision(name: str) -> None:
    """What else torchvision.models holds is no architecture."""
    with pytest.raises(ConfigError, match="no classification model"):
        _config("torchvision", name).resolved_for(traits(64))


@pytest.mark.parametrize(
    ("library", "architecture", "height", "width", "reason"),
    [
        ("torchvision", "vit_b_16", 40, 40, "indivisible by patch size"),
        ("torchvision", "vit_b_16", 64, 32, "it takes square images only"),
        ("torchvision", "alexnet", 16, 16, "(?i)too small"),
        ("torchvision", "inception_v3", 32, 32, "(?i)kernel size"),
        ("timm", "vit_tiny_patch16_224", 8, 8, "."),
        ("timm", "vgg11", 16, 16, "."),
        ("timm", "crossvit_9_240", 200, 200, "."),
    ],
)
def test_refuses_a_size_that_the_model_cannot_take(
    library: str, architecture: str, height: int, width: int, reason: str
) -> None:
    """The error names model and size, gives the library's reason and two ways out."""
    with pytest.raises(ConfigError) as caught:
        _config(library, architecture).resolved_for(traits(height, width))
    text = str(caught.value)
    assert text.startswith(
        f"{library}'s {architecture} cannot be built for {height}x{width} images: "
    )
    assert text.endswith(
        "Choose another model.architecture, or change its settings or data.image_size."
    )
    assert re.search(reason, text)


@pytest.mark.parametrize("library", LIBRARIES)
def test_takes_no_patch_embedding(library: str) -> None:
    """By default there is none, and one that is named is refused with both names."""
    assert validated({"model": {"name": library}}).model.patch_embedding.name == "none"
    chosen = {"name": library, "patch_embedding": {"name": "conv"}}
    with pytest.raises(ConfigError) as caught:
        validated({"model": chosen})
    assert str(caught.value) == (
        f"model.patch_embedding.name is conv, but the model {library} takes no patch embedding. "
        "Set it to none, or omit it."
    )


@pytest.mark.parametrize("library", LIBRARIES)
def test_takes_no_settings_of_a_patch_embedding(library: str) -> None:
    """A setting of a patch embedding without its name is refused too."""
    chosen = {"name": library, "patch_embedding": {"patch_size": 4}}
    with pytest.raises(ConfigError, match=r"model\.patch_embedding\.patch_size is set, but the"):
        validated({"model": chosen})


def test_a_model_that_takes_patches_refuses_to_go_without() -> None:
    """No patch embedding for a model that needs one is the user's error, told before the run."""
    with pytest.raises(ConfigError, match=r"model\.patch_embedding\.name"):
        validated({"model": {"name": "vit", "patch_embedding": {"name": "none"}}})


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_run_is_checked_before_it_starts(library: str) -> None:
    """Resolving a whole run's settings tries the model on the images of the data."""
    config = validated({"model": {"name": library, "architecture": "resnet18"}})
    resolved = resolve_settings(config, traits(64))
    assert resolved.model.settings["architecture"] == "resnet18"
    assert resolved.model.patch_embedding.name == "none"
    wrong = validated({"model": {"name": library, "architecture": "resnet19"}})
    with pytest.raises(ConfigError, match="resnet19"):
        resolve_settings(wrong, traits(64))


@pytest.mark.parametrize("library", LIBRARIES)
def test_counts_on_meta(library: str) -> None:
    """Without memory for weights, a model has as many parameters as with it."""
    choice = _choice(library, "resnet18")
    model = build_on_meta(choice, image_spec(64), 5)
    assert sum(p.numel() for p in model.parameters()) == 11_179_077
    assert all(p.is_meta for p in model.parameters())


def test_says_that_timm_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without timm installed, the error says so and how to install it; torchvision still works."""
    monkeypatch.setitem(sys.modules, "timm", None)
    choice = _choice("timm", "resnet18")
    expected = r"'timm' needs the package timm, which is not installed\. .*pip install"
    with pytest.raises(PluginError, match=expected):
        _config("timm", "resnet18").resolved_for(traits(64))
    with pytest.raises(PluginError, match=expected):
        build_model(choice, image_spec(64), 5)
    _config("torchvision", "resnet18").resolved_for(traits(64))

"""Each check of a model finds the fault that it is there for, and blames no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from patchline.plugin_api import NO_PATCH_EMBEDDING, ModelContext, ModelPlugin, PluginConfig
from tests.pipeline.plugin_system.contract.faults import (
    OF_SETTINGS,
    SLOW,
    Fault,
    assert_found,
    failures,
    names_of,
)

_HIDDEN = 32


class NoSettings(PluginConfig):
    """There is nothing to set."""


class Sound(nn.Module):
    """A model without fault, for images of any size."""

    def __init__(self, _config: NoSettings, context: ModelContext) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(16 * context.image.channels, _HIDDEN),
            nn.GELU(),
        )
        self.head = nn.Linear(_HIDDEN, self.num_logits(context))

    def num_logits(self, context: ModelContext) -> int:
        """Return how many logits there are."""
        return context.num_classes

    def forward(self, images_BCHW: torch.Tensor) -> Any:
        """Return the logits."""
        return self.head(self.features(images_BCHW))


class Fed(nn.Module):
    """A model without fault that asks for its patch embedding."""

    def __init__(self, _config: NoSettings, context: ModelContext) -> None:
        super().__init__()
        self.patch_embedding = context.patch_embedding(_HIDDEN)
        self.head = nn.Sequential(nn.GELU(), nn.Linear(_HIDDEN, context.num_classes))

    def forward(self, images_BCHW: torch.Tensor) -> Any:
        """Return the logits."""
        return self.head(self.patch_embedding(images_BCHW).tokens_BND.mean(dim=1))


class OneLogitMore(Sound):
    def num_logits(self, context: ModelContext) -> int:
        return context.num_classes + 1


class AlwaysFive(Sound):
    def num_logits(self, _context: ModelContext) -> int:
        return 5


class AnswersADictionary(Sound):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        return {"logits": super().forward(images_BCHW)}


class Float64(Sound):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        return super().forward(images_BCHW).double()


class Probabilities(Sound):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        return super().forward(images_BCHW).softmax(dim=-1)


class FrozenFeatures(Sound):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        return self.head(self.features(images_BCHW).detach())


class FrozenHead(Sound):
    def __init__(self, config: NoSettings, context: ModelContext) -> None:
        super().__init__(config, context)
        self.head.requires_grad_(requires_grad=False)


class DetachedLogits(Sound):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        return super().forward(images_BCHW).detach()


class BatchOfTwo(Sound):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        return self.head(self.features(images_BCHW).reshape(2, _HIDDEN))


class NormalisesOverTheBatch(Sound):
    def forward(self, images_BCHW: torch.Tensor) -> Any:
        features = self.features(images_BCHW)
        return self.head(nn.functional.layer_norm(features.T, features.shape[:1]).T)


class FixedSize(Sound):
    def __init__(self, config: NoSettings, context: ModelContext) -> None:
        super().__init__(config, context)
        if context.image.height != context.image.width:
            raise NotImplementedError("square images only")


def _plugin(build: Callable[..., Any], patch_embedding: str = NO_PATCH_EMBEDDING) -> Any:
    return ModelPlugin(
        summary="For the tests",
        paper="",
        config_class=NoSettings,
        build=build,
        patch_embedding=patch_embedding,
    )


SOUND = _plugin(Sound)
_LOGITS = "returns_logits"
_CLASSES = "takes_any_number_of_classes"
_SIZES = "fits_or_refuses_every_size"
_GRADIENT = "every_parameter_gets_a_gradient"
_LEARNS = "overfits_one_batch"
_OF_MODULE = dict.fromkeys(set(names_of(SOUND)) - OF_SETTINGS, "")
FAULTS = [
    Fault("not a module", _plugin(lambda *_: 3), {**_OF_MODULE, _LOGITS: "It builds a int."}),
    Fault(
        "asks for an embedding and says that it takes none",
        _plugin(Fed),
        {**_OF_MODULE, _LOGITS: "It builds a patch embedding, but declares that it takes none "},
    ),
    Fault(
        "an embedding that nobody installed",
        _plugin(Fed, "konv"),
        {**_OF_MODULE, _LOGITS: "There is no patch_embedding plugin 'konv'. Did you mean 'conv'?"},
    ),
    Fault(
        "one logit more",
        _plugin(OneLogitMore),
        {
            _LOGITS: "Its logits have the shape (2, 6). For 2 images and 5 classes, (2, 5)",
            _CLASSES: "For 2 classes it returns 3 logits. Use context.num_classes.",
        },
    ),
    Fault(
        "always five classes",
        _plugin(AlwaysFive),
        {_CLASSES: "For 2 classes it returns 5 logits. Use context.num_classes."},
    ),
    Fault(
        "a dictionary",
        _plugin(AnswersADictionary),
        {
            **{name: "" for name in _OF_MODULE if name != "leaves_the_images_alone"},
            _LOGITS: "It returns dict. Return the logits as one tensor.",
        },
    ),
    Fault(
        "float64",
        _plugin(Float64),
        {_LOGITS: "Its logits are torch.float64. Keep float32."},
    ),
    Fault(
        "probabilities instead of logits",
        _plugin(Probabilities),
        {_LEARNS: "the loss is 0.9"},
    ),
    Fault(
        "features behind a wall",
        _plugin(FrozenFeatures),
        {_GRADIENT: "The parameter features.2.weight gets no gradient.", _LEARNS: "After 300"},
    ),
    Fault(
        "a frozen head",
        _plugin(FrozenHead),
        {_GRADIENT: "The parameter head.weight gets no gradient.", _LEARNS: "After 300"},
    ),
    Fault(
        "detached logits",
        _plugin(DetachedLogits),
        {_GRADIENT: "does not require grad", _LEARNS: "does not require grad"},
    ),
    Fault(
        "a batch of two and no other",
        _plugin(BatchOfTwo),
        {
            _GRADIENT: "shape '[2, 32]' is invalid",
            "images_do_not_see_each_other": "shape '[2, 32]' is invalid",
            _LEARNS: "shape '[2, 32]' is invalid",
            "runs_in_bfloat16": "shape '[2, 32]' is invalid",
            "exports_to_onnx": "invalid dimensions",
        },
    ),
    Fault(
        "normalised over the batch",
        _plugin(NormalisesOverTheBatch),
        {"images_do_not_see_each_other": "An image's output depends on the other images."},
    ),
    Fault(
        "square images only",
        _plugin(FixedSize),
        {_SIZES: "For 31x37 images it raised NotImplementedError: square images only. Raise"},
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_found_in_its_own_words(fault: Fault) -> None:
    """The checks that a fault breaks fail and name it; of the quick ones no other does."""
    slow = SLOW - {name for name, words in fault.failing.items() if words}
    assert_found(fault, set(names_of(SOUND)) - slow)


@pytest.mark.slow  # every check of a dozen plugins: two seconds each
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_breaks_nothing_else(fault: Fault) -> None:
    """Of all checks those fail that the fault breaks."""
    assert_found(fault, names_of(SOUND))


@pytest.mark.parametrize(
    "plugin",
    [
        pytest.param(SOUND, id="alone"),
        # each network that is compiled and exported takes seconds
        pytest.param(_plugin(Fed, "conv"), id="fed", marks=pytest.mark.slow),
    ],
)
def test_a_sound_model_passes(plugin: Any) -> None:
    """The models that the faulty ones derive from keep the contract."""
    assert failures(plugin, names_of(plugin)) == {}

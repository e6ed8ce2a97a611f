"""What a model costs, held against published numbers, formulas, another counter and real runs."""

from __future__ import annotations

import contextlib
import io
import json
import random
import resource
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from ptflops import get_model_complexity_info
from ptflops.aten_ops import addmm_flop, conv_flop
from torch.nn.attention import SDPBackend, sdpa_kernel

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.errors import ConfigError, PluginError
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_cost import ModelCost, model_cost, resolved_choice
from patchline.pipeline.plugin_system.plugin_loader import installed
from patchline.plugin_api import DataTraits, ImageSpec
from patchline.plugins.models.transformer_settings import VIT_SIZES

pytestmark = pytest.mark.slow  # builds and runs every model twice

SMALL: list[tuple[dict[str, Any], int]] = [
    ({"name": "vit", "size": "micro"}, 32),
    ({"name": "simple_vit", "size": "micro"}, 32),
    ({"name": "vit_registers", "size": "micro"}, 32),
    ({"name": "rope_vit", "size": "micro"}, 32),
    ({"name": "cct", "size": "2"}, 32),
    ({"name": "vit_small_data", "size": "micro"}, 32),
    ({"name": "torchvision", "architecture": "resnet18"}, 224),
    ({"name": "timm", "architecture": "vit_tiny_patch16_224"}, 224),
]
EMBEDDINGS = (
    "conv", "linear", "conv_stem", "overlap", "cct", "shifted", "flexi", "hybrid", "whitened",
)  # fmt: skip
FED: list[tuple[dict[str, Any], int]] = [
    ({"patch_embedding": {"name": name}}, 32) for name in EMBEDDINGS[1:]
]
VARIATIONS: list[tuple[dict[str, Any], int]] = [
    ({"positions": "none", "pooling": "attention", "head": "tanh"}, 32),
    ({"positions": "sine_cosine", "pooling": "average", "layer_scale": 0.1}, 32),
    ({"patch_embedding": {"name": "conv_stem", "norm": "group"}}, 32),
    ({"patch_embedding": {"name": "cct", "num_layers": 1}}, 32),
]
LARGE: list[tuple[dict[str, Any], int]] = [
    ({"size": "b"}, 224),
    ({"name": "simple_vit", "size": "s"}, 224),
    ({"name": "vit_registers", "size": "s"}, 224),
    ({"name": "rope_vit", "size": "s"}, 224),
    ({"name": "cct", "size": "14"}, 224),
    ({"name": "vit_small_data", "size": "paper"}, 224),
    ({"name": "torchvision", "architecture": "convnext_tiny"}, 224),
    ({"name": "timm", "architecture": "efficientnet_b0"}, 224),
]


def _name(value: Any) -> str:
    """Return a test's id."""
    if not isinstance(value, dict):
        return str(value)
    embedding = value.get("patch_embedding", {}).values()
    own = (v for k, v in value.items() if k != "patch_embedding")
    return "-".join(str(part) for part in [*own, *embedding])


def _figures(choice: dict[str, Any], image_size: int) -> ModelCost:
    return _counted(json.dumps(choice), image_size)


@cache
def _counted(choice: str, image_size: int) -> ModelCost:
    return model_cost(ModelChoice.model_validate(json.loads(choice)), image_size)


def _built(choice: dict[str, Any], image_size: int) -> Any:
    return _with_weights(json.dumps(choice), image_size)


@cache
def _with_weights(choice: str, image_size: int) -> Any:
    """Build the same model with real weights, once for all tests."""
    traits = DataTraits(3, image_size, image_size, 1000, mirror_symmetric=True)
    image = ImageSpec.model_validate(
        {
            "channels": 3,
            "height": image_size,
            "width": image_size,
            "mean": (0.5,) * 3,
            "std": (0.5,) * 3,
            "resize": "crop",
        }
    )
    resolved = resolved_choice(ModelChoice.model_validate(json.loads(choice)), traits)
    torch.manual_seed(0)
    return build_model(resolved, image, 1000)


# -- parameters and tokens -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "parameters", "without_head"),
    [
        ({"size": "b"}, 86_567_656, 85_798_656),
        ({"size": "s"}, 22_050_664, 21_665_664),
        ({"name": "torchvision", "architecture": "resnet50"}, 25_557_032, 23_508_032),
        ({"name": "torchvision", "architecture": "resnet18"}, 11_689_512, 11_176_512),
        ({"name": "timm", "architecture": "vit_tiny_patch16_224"}, 5_717_416, 5_524_416),
        pytest.param({"size": "l"}, 304_326_632, 303_301_632, marks=pytest.mark.slow),
        ({"size": "h"}, 632_199_400, 630_918_400),
        pytest.param(
            {"name": "timm", "architecture": "resnet50"},
            *(25_557_032, 23_508_032),
            marks=pytest.mark.slow,
        ),
    ],
    ids=_name,
)
def test_published_numbers_of_parameters(
    choice: dict[str, Any], parameters: int, without_head: int
) -> None:
    """At 224 pixels, patch 16 and 1000 classes the numbers are the published ones."""
    figures = _figures(choice, 224)
    assert (figures.parameters, figures.parameters_without_head) == (parameters, without_head)


@pytest.mark.parametrize(("choice", "image_size"), [*SMALL[:7], *FED], ids=_name)
def test_parameters_are_those_of_the_real_model(choice: dict[str, Any], image_size: int) -> None:
    """What is counted without memory is what a real model learns."""
    real = _built(choice, image_size)
    assert _figures(choice, image_size).parameters == sum(p.numel() for p in real.parameters())


def test_the_hidden_layer_of_the_tanh_head_is_no_part_of_the_head() -> None:
    """Without the head means without what grows with the classes: the hidden layer stays."""
    linear, tanh = (_figures({"head": head}, 32) for head in ("linear", "tanh"))
    hidden = 96 * 96 + 96
    assert tanh.parameters - linear.parameters == hidden
    assert tanh.parameters_without_head - linear.parameters_without_head == hidden
    assert linear.parameters - linear.parameters_without_head == 1000 * (96 + 1)


@pytest.mark.parametrize(
    ("choice", "image_size", "tokens"),
    [
        ({"size": "micro"}, 32, 64),
        ({"size": "micro"}, 224, 196),
        ({"patch_embedding": {"patch_size": 8}}, 32, 16),
        ({"name": "vit_registers", "size": "micro"}, 32, 64),
        ({"patch_embedding": {"name": "cct", "num_layers": 1}}, 32, 256),
        ({"name": "torchvision", "architecture": "resnet18"}, 224, 0),
    ],
    ids=_name,
)
def test_tokens_are_the_patches(choice: dict[str, Any], image_size: int, tokens: int) -> None:
    """Class token and registers are not counted; a model of another library has none."""
    assert _figures(choice, image_size).tokens == tokens


# -- multiplications -----------------------------------------------------------------------------


def _without_biases() -> dict[Any, Any]:
    """Return ptflops' own formulas, called as for layers that have no bias to add."""
    aten = torch.ops.aten
    return {
        aten.addmm: lambda inputs, outputs: addmm_flop([None, *inputs[1:]], outputs),
        aten.convolution: lambda inputs, outputs: conv_flop(
            [*inputs[:2], None, *inputs[3:]], outputs
        ),
    }


def _by_ptflops(choice: dict[str, Any], image_size: int, **more: Any) -> int:
    # ptflops does not see into fused attention; the same products step by step it does.
    with sdpa_kernel(SDPBackend.MATH), contextlib.redirect_stdout(io.StringIO()):
        macs, _ = get_model_complexity_info(
            _built(choice, image_size),
            (3, image_size, image_size),
            as_strings=False,
            print_per_layer_stat=False,
            backend="aten",
            **more,
        )
    return int(macs)


@pytest.mark.parametrize(
    ("choice", "image_size"),
    [
        *SMALL,
        *FED,
        *VARIATIONS,
        *(pytest.param(*case, marks=pytest.mark.slow) for case in LARGE),
    ],
    ids=_name,
)
def test_multiplications_are_those_of_ptflops(choice: dict[str, Any], image_size: int) -> None:
    """Another counter finds exactly as many, once it leaves out the additions of biases."""
    ours = _figures(choice, image_size).macs
    assert ours == _by_ptflops(choice, image_size, custom_modules_hooks=_without_biases())


@pytest.mark.parametrize(("choice", "image_size"), [SMALL[0], SMALL[4], SMALL[6]], ids=_name)
def test_ptflops_as_it_comes_counts_a_percent_more(choice: dict[str, Any], image_size: int) -> None:
    """It counts the addition of a bias as a multiplication, which is less than a hundredth."""
    ours = _figures(choice, image_size).macs
    assert 1 < _by_ptflops(choice, image_size) / ours < 1.01


def test_every_built_in_model_and_embedding_is_compared() -> None:
    """The lists of this module hold each installed plugin."""
    ours = {(e.kind, e.name) for e in installed() if e.distribution == "patchline"}
    models = {("model", choice["name"]) for choice, _ in SMALL}
    assert models == {pair for pair in ours if pair[0] == "model"}
    assert {("patch_embedding", name) for name in EMBEDDINGS} == {
        pair for pair in ours if pair[0] == "patch_embedding"
    }


@pytest.mark.parametrize(
    ("size", "image_size", "patch_size"),
    [
        ("micro", 32, 4),
        ("micro", 64, 8),
        ("mini", 32, 8),
        ("ti", 224, 16),
        pytest.param("b", 224, 16, marks=pytest.mark.slow),
    ],
)
def test_multiplications_of_a_vit_follow_the_formula(
    size: str, image_size: int, patch_size: int
) -> None:
    """Projections, scores, mixing and MLP of each block, and both ends, by hand."""
    D, depth, _, M = VIT_SIZES[size]
    patches = (image_size // patch_size) ** 2
    N = patches + 1
    block = 4 * N * D**2 + 2 * N**2 * D + 2 * N * D * M
    ends = patches * 3 * patch_size**2 * D + 1000 * D
    figures = _figures({"size": size, "patch_embedding": {"patch_size": patch_size}}, image_size)
    assert figures.macs == depth * block + ends


@pytest.mark.parametrize(
    "choice",
    [
        {"patch_dropout": 0.5},
        {"dropout": 0.1, "attention_dropout": 0.1, "stochastic_depth": 0.1},
    ],
    ids=_name,
)
def test_what_is_dropped_in_training_is_multiplied_in_use(choice: dict[str, Any]) -> None:
    """Multiplications are those of a forward pass over all tokens, whatever training leaves out."""
    assert _figures(choice, 32).macs == _figures({"size": "micro"}, 32).macs


# -- what training keeps -------------------------------------------------------------------------


def _really_kept(choice: dict[str, Any], image_size: int) -> int:
    """Return the bytes that autograd keeps in a real forward pass, each piece of memory once."""
    model = _built(choice, image_size).train()
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        answer = model(torch.randn(1, 3, image_size, image_size))
    assert answer.requires_grad
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    return sum(size for address, size in storages.items() if address not in own)


@pytest.mark.parametrize(
    ("choice", "image_size"),
    [
        *SMALL[:7],
        *FED,
        *VARIATIONS,
        ({"dropout": 0.1, "attention_dropout": 0.1, "stochastic_depth": 0.1}, 32),
        ({"patch_dropout": 0.5}, 32),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in LARGE),
    ],
    ids=_name,
)
def test_activation_memory_is_what_a_real_run_keeps(
    choice: dict[str, Any], image_size: int
) -> None:
    """Counted without values, it is what autograd holds on to in a real forward pass."""
    counted = _figures(choice, image_size).activation_bytes
    assert counted == pytest.approx(_really_kept(choice, image_size), rel=0.01)


def test_activation_memory_is_linear_in_depth() -> None:
    """Each further block keeps as much as the one before."""
    four, six, eight = (_figures({"depth": d}, 32).activation_bytes for d in (4, 6, 8))
    assert eight - six == six - four > 0


def test_activation_memory_grows_with_the_image() -> None:
    """Four times the patches take four times the memory: the scores are never kept whole."""
    patch = {"patch_embedding": {"patch_size": 8}}
    small, large = (_figures(patch, side).activation_bytes for side in (64, 128))
    assert 3.8 < large / small < 4.1


# -- how it is counted ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "image_size"),
    [
        ({"name": "rope_vit", "size": "micro"}, 32),
        ({"dropout": 0.1, "stochastic_depth": 0.2, "patch_dropout": 0.5}, 32),
    ],
    ids=_name,
)
def test_no_random_number_is_drawn(choice: dict[str, Any], image_size: int) -> None:
    """Counting leaves every generator as it was, and does not depend on its state."""
    answers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the global generator is what is looked at
        random.seed(seed)
        before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002 - the same
        answers.append(model_cost(ModelChoice.model_validate(choice), image_size))
        after = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002 - the same
        assert torch.equal(before[0], after[0])
        assert before[1:] == after[1:]
    assert answers[0] == answers[1]


def test_counting_huge_takes_no_memory() -> None:
    """Huge has 2.5 GB of weights; counting it raises the process's peak by less than a fifth."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert _figures({"size": "h"}, 224).parameters == 632_199_400
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB


@pytest.mark.parametrize(
    ("choice", "image_size"),
    [
        ({"name": "torchvision", "architecture": "resnet18"}, 32),
        ({"name": "timm", "architecture": "levit_128s"}, 224),
        ({"name": "torchvision", "architecture": "regnet_y_400mf"}, 64),
        ({"patch_embedding": {"name": "flexi", "patch_size": 4, "patch_sizes": [4, 8]}}, 32),
    ],
    ids=_name,
)
def test_a_model_that_can_be_trained_can_be_counted(
    choice: dict[str, Any], image_size: int
) -> None:
    """Norms over one value, sizes from tensors and a draw in training are no obstacle."""
    figures = _figures(choice, image_size)
    assert figures.parameters == sum(p.numel() for p in _built(choice, image_size).parameters())
    assert figures.macs > 0
    assert figures.activation_bytes > 0


@pytest.mark.parametrize(
    ("choice", "image_size", "error", "words"),
    [
        ({"patch_embedding": {"patch_size": 5}}, 32, ConfigError, "patch_size 5 does not divide"),
        ({"num_heads": 7}, 32, ConfigError, "num_heads 7 does not divide"),
        ({"sise": "b"}, 32, ConfigError, "Did you mean model.size"),
        ({"name": "torchvision", "architecture": "resnet19"}, 32, ConfigError, "resnet18"),
        ({"name": "vitt"}, 32, PluginError, "Did you mean 'vit'"),
        ({"patch_embedding": {"name": "none"}}, 32, ConfigError, "needs a patch embedding"),
    ],
    ids=_name,
)
def test_what_does_not_fit_is_refused(
    choice: dict[str, Any], image_size: int, error: type[Exception], words: str
) -> None:
    """A setting that training would refuse is refused here, in the same sentence."""
    with pytest.raises(error, match=words):
        _figures(choice, image_size)


def test_resolving_names_the_embedding_and_fills_in_every_setting() -> None:
    """The resolved choice has the embedding's name instead of auto, and no setting left open."""
    traits = DataTraits(3, 32, 32, 10, mirror_symmetric=True)
    resolved = resolved_choice(ModelChoice(name="cct"), traits)
    assert resolved.patch_embedding.name == "cct"
    assert None not in resolved.settings.values()
    assert None not in resolved.patch_embedding.settings.values()
    other = resolved_choice(ModelChoice(name="torchvision"), traits)
    assert (other.patch_embedding.name, other.patch_embedding.settings) == ("none", {})

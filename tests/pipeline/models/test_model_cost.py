"""What a model costs, held against published numbers, formulas, another counter and real runs."""

from __future__ import annotations

import contextlib
import io
import random
import resource
from typing import Any

import numpy as np
import pytest
import torch
from ptflops import get_model_complexity_info
from ptflops.aten_ops import addmm_flop, conv_flop
from torch.nn.attention import SDPBackend, sdpa_kernel

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_cost import ModelCost, model_cost, resolve_choice
from patchline.pipeline.plugin_system.plugin_loader import list_installed
from patchline.plugin_api import DataTraits
from tests.plugins.model_parity import image_spec

OF_BLOCKS = ("simple_vit", "vit_registers", "rope_vit", "vit_small_data")
EMBEDDINGS = ("linear", "conv_stem", "overlap", "shifted", "flexi", "hybrid", "whitened")
SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_dim": 32}
CHOICES: list[tuple[dict[str, Any], int]] = [
    *(({"name": name, **SMALL}, 32) for name in OF_BLOCKS),
    ({"name": "cct", "size": "2", "patch_embedding": {"name": "cct", "num_layers": 1}}, 32),
    ({"name": "torchvision", "architecture": "resnet18"}, 64),
    ({"name": "timm", "architecture": "test_efficientnet"}, 64),
    *(({**SMALL, "patch_embedding": {"name": name}}, 32) for name in EMBEDDINGS),
    ({**SMALL, "name": "vit", "positions": "none", "pooling": "attention", "head": "tanh"}, 32),
    ({**SMALL, "positions": "sine_cosine", "pooling": "average", "layer_scale": 0.1}, 32),
    ({**SMALL, "patch_embedding": {"name": "conv_stem", "norm": "group"}}, 32),
    ({**SMALL, "dropout": 0.1, "attention_dropout": 0.1, "stochastic_depth": 0.1}, 32),
    ({**SMALL, "patch_dropout": 0.5, "patch_embedding": {"name": "conv"}}, 32),
]


def _figures(choice: dict[str, Any], image_size: int = 32) -> ModelCost:
    return model_cost(ModelChoice.model_validate(choice), image_size)


def _built(choice: dict[str, Any], image_size: int) -> Any:
    """Build the same model with real weights."""
    traits = DataTraits(3, image_size, image_size, 1000, mirror_symmetric=True)
    resolved = resolve_choice(ModelChoice.model_validate(choice), traits)
    torch.manual_seed(0)
    return build_model(resolved, image_spec(image_size), 1000)


# -- parameters and tokens -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "parameters", "without_head"),
    [
        ({"size": "s"}, 22_050_664, 21_665_664),
        ({"name": "torchvision", "architecture": "resnet50"}, 25_557_032, 23_508_032),
        ({"name": "timm", "architecture": "vit_tiny_patch16_224"}, 5_717_416, 5_524_416),
    ],
)
def test_published_numbers_of_parameters(
    choice: dict[str, Any], parameters: int, without_head: int
) -> None:
    """At 224 pixels, patch 16 and 1000 classes the numbers are the published ones."""
    figures = _figures(choice, 224)
    assert (figures.parameters, figures.parameters_without_head) == (parameters, without_head)


def test_counting_huge_takes_no_memory() -> None:
    """Huge has 2.5 GB of weights; counting it raises the process's peak by less than a fifth."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert _figures({"size": "h"}, 224).parameters == 632_199_400  # as published
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB


@pytest.mark.parametrize(
    ("choice", "tokens"),
    [
        ({"name": "vit_registers", "size": "micro"}, 64),
        ({"patch_embedding": {"name": "cct", "num_layers": 1}}, 256),
        ({"name": "torchvision", "architecture": "resnet18"}, 0),
    ],
)
def test_tokens_are_the_patches(choice: dict[str, Any], tokens: int) -> None:
    """Class token and registers are not counted; a model of another library has none."""
    assert _figures(choice).tokens == tokens


# -- a forward pass ------------------------------------------------------------------------------


def _by_ptflops(model: Any, image_size: int) -> int:
    """Count with ptflops, whose formulas are called as for layers that have no bias to add."""
    aten = torch.ops.aten
    formulas = {
        aten.addmm: lambda inputs, outputs: addmm_flop([None, *inputs[1:]], outputs),
        aten.convolution: lambda inputs, outputs: conv_flop(
            [*inputs[:2], None, *inputs[3:]], outputs
        ),
    }
    # ptflops does not see into fused attention; the same products step by step it does.
    with sdpa_kernel(SDPBackend.MATH), contextlib.redirect_stdout(io.StringIO()):
        macs, _ = get_model_complexity_info(
            model,
            (3, image_size, image_size),
            as_strings=False,
            print_per_layer_stat=False,
            backend="aten",
            custom_modules_hooks=formulas,
        )
    return int(macs)


def _really_kept(model: Any, image_size: int) -> int:
    """Return the bytes that autograd keeps in a real forward pass, each piece of memory once."""
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        answer = model.train()(torch.randn(1, 3, image_size, image_size))
    assert answer.requires_grad
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    return sum(size for address, size in storages.items() if address not in own)


@pytest.mark.parametrize(("choice", "image_size"), CHOICES, ids=str)
def test_a_real_model_costs_what_is_counted(choice: dict[str, Any], image_size: int) -> None:
    """Parameters, multiplications by another counter, and what a real forward pass keeps."""
    figures, model = _figures(choice, image_size), _built(choice, image_size)
    assert figures.parameters == sum(p.numel() for p in model.parameters())
    assert figures.macs == _by_ptflops(model, image_size)
    kept = _really_kept(model, image_size)
    assert figures.activation_bytes == pytest.approx(kept, rel=0.01)


def test_every_built_in_model_and_embedding_is_compared() -> None:
    """The list of this module holds each installed plugin."""
    named = {("model", choice["name"]) for choice, _ in CHOICES if "name" in choice}
    named |= {
        ("patch_embedding", choice["patch_embedding"]["name"])
        for choice, _ in CHOICES
        if "patch_embedding" in choice
    }
    assert named == {
        (entry.kind, entry.name)
        for kind in ("model", "patch_embedding")
        for entry in list_installed(kind)
        if entry.distribution == "patchline"
    }


# -- how it is counted ---------------------------------------------------------------------------


def test_no_random_number_is_drawn() -> None:
    """Counting leaves every generator as it was, and does not depend on its state."""

    def states() -> list[str]:
        return [str(torch.get_rng_state().tolist()), str(random.getstate()),
                str(np.random.get_state())]  # fmt: skip  # noqa: NPY002 - the global generator

    choice = {"name": "rope_vit", "dropout": 0.1, "stochastic_depth": 0.2, "patch_dropout": 0.5}
    answers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = states()
        answers.append(_figures(choice))
        assert states() == before
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("choice", "image_size"),
    [
        ({"name": "torchvision", "architecture": "resnet18"}, 32),
        ({"name": "timm", "architecture": "levit_128s"}, 224),
        ({"name": "torchvision", "architecture": "regnet_y_400mf"}, 64),
        ({"patch_embedding": {"name": "flexi", "patch_size": 4, "patch_sizes": [4, 8]}}, 32),
    ],
)
def test_a_model_that_can_be_trained_can_be_counted(
    choice: dict[str, Any], image_size: int
) -> None:
    """Norms over one value, sizes from tensors and a draw in training are no obstacle."""
    figures = _figures(choice, image_size)
    assert figures.macs > 0
    assert figures.activation_bytes > 0

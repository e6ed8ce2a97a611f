"""What a step changes: weight decay by kind, Muon, the moving average and float16's scaled loss."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.training.config import OptimizerConfig
from patchline.pipeline.training.recipe.optimizer import (
    OPTIMIZERS,
    LossScale,
    Muon,
    build_optimizer,
    rate_factors,
)
from patchline.pipeline.training.recipe.weight_averaging import MovingAverage
from tests.pipeline.models.probing.tiny_models import image_spec


def _model() -> nn.Module:
    embedding = {"name": "conv", "patch_size": 4}
    size = {"embed_dim": 12, "depth": 2, "mlp_dim": 8}
    choice = ModelChoice.model_validate({"name": "vit", "patch_embedding": embedding, **size})
    return build_model(choice, image_spec(8), num_classes=3)


def _decaying(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
    rates = {
        id(parameter): group["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return {name for name, parameter in model.named_parameters() if rates[id(parameter)] > 0}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (entry.kind, entry.name)
        for kind in ("model", "patch_embedding")
        for entry in plugin_loader.list_installed(kind)
        if entry.target.startswith("patchline.plugins.")
    ],
)
def test_the_rule_holds_for_every_built_in_model(kind: str, name: str) -> None:
    """What multiplies features decays; norms, biases, scales, tokens and positions do not."""
    choice = (
        {"name": name} if kind == "model" else {"name": "vit", "patch_embedding": {"name": name}}
    )
    model = build_model(ModelChoice.model_validate(choice), image_spec(32), num_classes=3)
    decaying = _decaying(model, build_optimizer(OptimizerConfig(), model))
    multiplies = {
        f"{path}.{own}"
        for path, module in model.named_modules()
        for own, parameter in module.named_parameters(recurse=False)
        if parameter.ndim > 1
        and (isinstance(module, nn.Linear | nn.modules.conv._ConvNd) or own == "kernel_DCKK")
    }
    assert decaying == multiplies


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_parameter_is_optimized_once_with_the_rate_of_its_layer(name: Any) -> None:
    """The groups of every optimizer hold each parameter, with its factor of layer decay."""
    model = _model()
    config = OptimizerConfig(name=name, schedule="constant", layer_decay=0.5)
    factors = rate_factors(0.5, model)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    held = [
        (names[id(each)], group["rate_factor"])
        for group in build_optimizer(config, model).param_groups
        for each in group["params"]
    ]
    assert sorted(held) == sorted(factors.items())


def test_the_settings_reach_the_optimizer() -> None:
    """Learning rate, betas and decay are those of the config."""
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.2, beta1=0.8, beta2=0.95)
    decaying, free = build_optimizer(config, _model()).param_groups
    assert (decaying["lr"], decaying["weight_decay"]) == (0.01, 0.2)
    assert (free["lr"], free["weight_decay"]) == (0.01, 0.0)
    assert decaying["betas"] == free["betas"] == (0.8, 0.95)


def test_muon_trains_the_matrices_of_all_layers_but_the_last() -> None:
    """The classifier, biases, norms, tokens and positions are left to AdamW."""
    model = _model()
    optimizer = build_optimizer(OptimizerConfig(name="muon"), model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    [matrices] = [group for group in optimizer.param_groups if group["matrices"]]
    held = {names[id(parameter)] for parameter in matrices["params"]}
    assert held == _decaying(model, optimizer) - {"head.weight"}
    assert "patch_embedding.projection.weight" in held  # a convolution


def test_layer_decay_lowers_the_rate_block_by_block() -> None:
    """The head has the full rate, each block before it a part, embedding and tokens the least."""
    model = _model()
    factors = rate_factors(0.5, model)
    assert {name for name, factor in factors.items() if factor == 1.0} == {
        "norm.weight", "norm.bias", "head.weight", "head.bias",
    }  # fmt: skip
    of_blocks = {name[:8]: factor for name, factor in factors.items() if name[:6] == "blocks"}
    assert of_blocks == {"blocks.0": 0.25, "blocks.1": 0.5}
    lowest = {name.partition(".")[0] for name, factor in factors.items() if factor == 0.125}
    assert lowest == {"patch_embedding", "class_token", "position_embedding"}
    assert set(rate_factors(1.0, model).values()) == {1.0}


def test_layer_decay_needs_blocks() -> None:
    """A model without numbered blocks is refused, with the remedy."""
    with pytest.raises(ConfigError, match=r"layer_decay is 0\.5, .* Set it to 1"):
        rate_factors(0.5, nn.Linear(2, 2))


def test_schedule_free_needs_a_constant_rate() -> None:
    """Another schedule would not be what trains, so it is refused."""
    with pytest.raises(ValueError, match=r"Set optimizer\.schedule to constant"):
        OptimizerConfig(name="schedule_free")


def test_the_average_of_schedule_free_is_validated() -> None:
    """It has the weights that the optimizer evaluates, and training keeps its own."""
    model = nn.Linear(4, 1)
    config = OptimizerConfig(name="schedule_free", schedule="constant", learning_rate=0.05)
    optimizer: Any = build_optimizer(config, model)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(64, 4)).square().mean().backward()
        optimizer.step()
    before, average = model.weight.detach().clone(), MovingAverage(model, 0.9)
    average.take_averaged(model, optimizer)
    assert torch.equal(model.weight, before)
    optimizer.eval()
    assert torch.equal(average.model.get_parameter("weight"), model.weight)
    assert not torch.equal(model.weight, before)


def _muon(parameter: nn.Parameter, *, matrices: bool = True, decay: float = 0.1) -> Muon:
    group = {"params": [parameter], "matrices": matrices}
    return Muon([group], lr=0.01, momentum=0.9, betas=(0.8, 0.95), weight_decay=decay)


def test_matrices_move_as_under_torchs_muon() -> None:
    """Ten steps on the same gradients end where torch's own ends, up to its bfloat16."""
    torch.manual_seed(0)
    start = torch.randn(12, 30)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine = _muon(ours)
    reference = torch.optim.Muon(
        [theirs], lr=0.01, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(10):
        gradient = torch.randn(12, 30)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        reference.step()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    moved, expected = ours.detach() - start, theirs.detach() - start
    assert torch.cosine_similarity(moved.flatten(), expected.flatten(), dim=0) > 0.999
    assert (moved - expected).norm() / expected.norm() < 0.03


def test_a_convolution_moves_as_the_matrix_of_its_kernels() -> None:
    """The same numbers as a matrix and as kernels make the same step, in either memory format."""
    torch.manual_seed(0)
    kernels = torch.randn(8, 4, 3, 3)
    gradient = torch.randn(8, 4, 3, 3)
    results = []
    for values, change in (
        (kernels.flatten(1), gradient.flatten(1)),
        (kernels, gradient),
        (kernels.contiguous(memory_format=torch.channels_last), gradient),
    ):
        parameter = nn.Parameter(values.clone(memory_format=torch.preserve_format))
        parameter.grad = change.clone()
        _muon(parameter, decay=0.0).step()
        results.append(parameter.detach().reshape(8, -1))
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, atol=1e-6, rtol=0)


def test_every_other_parameter_moves_as_under_adamw() -> None:
    """Groups without matrices take exactly torch's AdamW steps."""
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(7))
    theirs = nn.Parameter(ours.detach().clone())
    mine = _muon(ours, matrices=False)
    reference = torch.optim.AdamW([theirs], lr=0.01, betas=(0.8, 0.95), weight_decay=0.1)
    for _ in range(5):
        gradient = torch.randn(7)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        reference.step()
    assert torch.equal(ours, theirs)


def test_follows_the_formula_with_its_warm_up_and_leaves_the_model_alone() -> None:
    """After n steps the decay is the smaller of the configured one and (1 + n) / (10 + n).

    Batch statistics are averaged as the weights are; a whole number is taken as it is.
    """
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    average = MovingAverage(model, decay=0.6)
    expected = {name: each.detach().double() for name, each in average.model.state_dict().items()}
    for step in range(1, 30):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        model(torch.randn(16, 3) + 5)
        before = {name: each.clone() for name, each in model.state_dict().items()}
        average.update(step)
        decay = min(0.6, (1 + step) / (10 + step))
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name])
            moved = decay * expected[name] + (1 - decay) * tensor.detach().double()
            expected[name] = moved if tensor.is_floating_point() else tensor.double()
    for name, found in average.model.state_dict().items():
        torch.testing.assert_close(found.double(), expected[name], atol=1e-5, rtol=1e-5)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


@pytest.mark.parametrize("overflows", [set(), {0, 1, 2, 5}], ids=["never", "often"])
def test_weights_and_factor_are_those_of_torchs_scaler(
    monkeypatch: pytest.MonkeyPatch, overflows: set[int]
) -> None:
    """Updates with an overflow are left out, and the factor changes after the same steps."""
    monkeypatch.setattr(f"{LossScale.__module__}._UPDATES", 3)
    torch.manual_seed(0)
    ours = nn.Linear(4, 2)
    theirs = copy.deepcopy(ours)
    mine, reference = LossScale("float16"), torch.amp.GradScaler("cpu", growth_interval=3)
    mine.factor = reference.get_scale()
    own, other = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (ours, theirs))
    for step in range(9):
        inputs = torch.randn(5, 4)
        size = 1e38 if step in overflows else 1.0
        for model, scaled in ((ours, mine.scaled), (theirs, reference.scale)):
            model.zero_grad()
            scaled(size * model(inputs).square().mean()).backward()
        mine.unscale(ours.parameters())
        norm = nn.utils.get_total_norm(
            [each.grad for each in ours.parameters() if each.grad is not None]
        )
        assert mine.tolerated(norm).isfinite()
        if mine.admits_update():
            own.step()
        reference.step(other)
        reference.update()
        assert mine.factor == reference.get_scale()
        assert torch.allclose(ours.weight, theirs.weight, atol=1e-6)


def test_an_overflow_without_a_factor_is_a_divergence() -> None:
    """A smaller factor could not help, so the norm stays what it is."""
    scale = LossScale("float16")
    infinite = torch.tensor(float("inf"))
    assert scale.tolerated(infinite) == 0
    scale.restore({"factor": 1.0, "updates": 3})
    assert scale.tolerated(infinite) == infinite
    assert scale.numbers() == {"factor": 1.0, "updates": 3}

"""The moving average of the weights follows its formula and its model."""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.training.recipe.ema import MovingAverage


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def _shift(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


def test_follows_the_formula_with_its_warm_up() -> None:
    """After n steps the decay is the smaller of the configured one and (1 + n) / (10 + n)."""
    model = _model()
    average = MovingAverage(model, decay=0.6)
    expected = [parameter.detach().double().clone() for parameter in model.parameters()]
    decays = []
    for step in range(1, 30):
        _shift(model)
        average.update(step)
        decays.append(min(0.6, (1 + step) / (10 + step)))
        expected = [
            decays[-1] * mean + (1 - decays[-1]) * parameter.detach().double()
            for mean, parameter in zip(expected, model.parameters(), strict=True)
        ]
    assert decays[0] < 0.2
    assert decays[-1] == 0.6
    for ours, theirs in zip(average.model.parameters(), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-5, rtol=1e-5)


def test_begins_as_a_copy_of_its_own() -> None:
    """The average starts at the model's weights and does not share their memory."""
    model = _model()
    average = MovingAverage(model, decay=0.9)
    before = [parameter.clone() for parameter in average.model.parameters()]
    for ours, theirs in zip(before, model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    _shift(model)
    for ours, earlier in zip(average.model.parameters(), before, strict=True):
        assert torch.equal(ours, earlier)


def test_leaves_the_model_alone() -> None:
    """An update changes no weight of the model, and the average asks for no gradient."""
    model = _model()
    average = MovingAverage(model, decay=0.9)
    _shift(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    average.update(1)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


def test_averages_running_statistics_and_copies_counters() -> None:
    """Batch statistics are averaged as the weights are; a whole number is taken as it is."""
    model = _model()
    average = MovingAverage(model, decay=0.9)
    model(torch.randn(16, 3) + 5)
    average.update(1)
    ours, theirs = average.model.state_dict(), model.state_dict()
    kept = 2 / 11  # of the first mean, which is zero, after one step of the warm-up
    assert float(theirs["1.running_mean"].abs().max()) > 0
    torch.testing.assert_close(ours["1.running_mean"], theirs["1.running_mean"] * (1 - kept))
    assert int(ours["1.num_batches_tracked"]) == int(theirs["1.num_batches_tracked"]) == 1


def test_a_short_run_leaves_the_initial_weights_behind() -> None:
    """After 20 steps at other weights, less than one percent of the initial ones is left."""
    model = _model()
    average = MovingAverage(model, decay=0.999)
    start = model.get_parameter("0.weight").detach().clone()
    with torch.no_grad():
        model.get_parameter("0.weight").add_(1.0)
    for step in range(1, 21):
        average.update(step)
    left = 1 - (average.model.get_parameter("0.weight") - start)
    assert float(left.max()) < 0.01

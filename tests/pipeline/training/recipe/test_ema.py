"""The moving average of the weights follows its formula and its model."""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.training.recipe.ema import MovingAverage


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

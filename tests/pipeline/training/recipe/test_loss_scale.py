"""The scaled loss of float16, against torch's own scaler."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from patchline.pipeline.training.recipe import loss_scale
from patchline.pipeline.training.recipe.loss_scale import LossScale


@pytest.mark.parametrize("overflows", [set(), {0, 1, 2, 5}], ids=["never", "often"])
def test_weights_and_factor_are_those_of_torchs_scaler(
    monkeypatch: pytest.MonkeyPatch, overflows: set[int]
) -> None:
    """Updates with an overflow are left out, and the factor changes after the same steps."""
    monkeypatch.setattr(loss_scale, "_UPDATES", 3)
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
            scaled(size * model(inputs).square().mean()).backward()  # type: ignore[no-untyped-call, operator]
        mine.unscale(ours.parameters())
        norm = nn.utils.get_total_norm(
            [each.grad for each in ours.parameters() if each.grad is not None]
        )
        assert mine.tolerated(norm).isfinite()
        mine.step(own)
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

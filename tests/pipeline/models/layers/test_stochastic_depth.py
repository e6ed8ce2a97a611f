"""Stochastic depth: identity in evaluation, the same expectation in training."""

from __future__ import annotations

import pytest
import torch

from patchline.pipeline.models.layers.stochastic_depth import StochasticDepth, drop_path_rates


@pytest.mark.parametrize("probability", [0.1, 0.8])
def test_drops_whole_samples_and_scales_the_others(probability: float) -> None:
    """A sample is zero throughout or scaled by 1 / (1 - p) throughout, and both happen."""
    torch.manual_seed(0)
    branch_BND = torch.randn(400, 4, 3)
    output_BND = StochasticDepth(probability).train()(branch_BND)
    dropped_B = (output_BND == 0).all(dim=(1, 2))
    torch.testing.assert_close(output_BND[~dropped_B], branch_BND[~dropped_B] / (1 - probability))
    assert abs(float(dropped_B.float().mean()) - probability) < 0.1


@pytest.mark.parametrize(
    ("last", "depth", "rates"),
    [
        (0.4, 5, [0.0, 0.1, 0.2, 0.3, 0.4]),
        (0.3, 1, [0.0]),
    ],
)
def test_the_rates_rise_linearly_from_zero(last: float, depth: int, rates: list[float]) -> None:
    """The first block is never skipped and the last one at the rate that was set."""
    assert drop_path_rates(last, depth) == pytest.approx(rates)

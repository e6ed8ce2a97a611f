"""Stochastic depth and patch dropout change with the progress, and only where they are ours."""

from __future__ import annotations

import pytest

from patchline.pipeline.layers.stochastic_depth import StochasticDepth
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.recipe.model_schedules import ModelSchedules
from tests.plugins.model_parity import built


@pytest.mark.parametrize(
    ("progress", "share", "patch_dropout"),
    [(0.0, 0.0, 0.25), (0.25, 0.5, 0.25), (0.5, 1.0, 0.25), (0.8, 1.0, 0.0), (1.0, 1.0, 0.0)],
)
def test_the_probabilities_follow_their_schedules(
    progress: float, share: float, patch_dropout: float
) -> None:
    """Stochastic depth rises to each block's own rate; patch dropout ends at its time."""
    model = built("vit", depth=3, stochastic_depth=0.2, patch_dropout=0.25)
    config = TrainingConfig(stochastic_depth_ramp=0.5, patch_dropout_until=0.8)
    schedules = ModelSchedules(config, model)
    for _ in range(2):  # a second call starts from the full rates again
        schedules.apply(progress)
    depths = [each for each in model.modules() if isinstance(each, StochasticDepth)]
    found = [each.drop_probability for each in depths]
    assert found == pytest.approx([0.0, 0.1 * share, 0.2 * share])
    assert model.patch_dropout.rate == patch_dropout


def test_without_schedules_nothing_changes() -> None:
    """The defaults keep the model's own probabilities from the first step to the last."""
    model = built("vit", depth=2, stochastic_depth=0.3, patch_dropout=0.25)
    schedules = ModelSchedules(TrainingConfig(), model)
    for progress in (0.0, 0.999):
        schedules.apply(progress)
        rates = {
            each.drop_probability for each in model.modules() if isinstance(each, StochasticDepth)
        }
        assert rates == {0.0, 0.3}
        assert model.patch_dropout.rate == 0.25

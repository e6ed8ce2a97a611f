"""Stochastic depth and patch dropout change with the progress, and only where they are ours."""

from __future__ import annotations

import pytest

from patchline.pipeline.layers.stochastic_depth import StochasticDepth
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.recipe.model_schedules import ModelSchedules
from tests.plugins.model_parity import built


@pytest.mark.parametrize(
    ("progress", "share", "patch_dropout"),
    [(0.0, 0.0, 0.25), (0.25, 0.5, 0.25), (0.8, 1.0, 0.0), (None, 1.0, 0.25)],
)
def test_the_probabilities_follow_their_schedules(
    progress: float | None, share: float, patch_dropout: float
) -> None:
    """Stochastic depth rises to each block's own rate; patch dropout ends at its time.

    Without schedules, nothing changes.
    """
    model = built("vit", depth=3, stochastic_depth=0.2, patch_dropout=0.25)
    config = TrainingConfig(stochastic_depth_ramp=0.5, patch_dropout_until=0.8)
    schedules = ModelSchedules(TrainingConfig() if progress is None else config, model)
    for _ in range(2):  # a second call starts from the full rates again
        schedules.apply(0.999 if progress is None else progress)
    depths = [each for each in model.modules() if isinstance(each, StochasticDepth)]
    found = [each.drop_probability for each in depths]
    assert found == pytest.approx([0.0, 0.1 * share, 0.2 * share])
    assert model.patch_dropout.rate == patch_dropout

"""Schedules of a model's stochastic depth and patch dropout over the training."""

from __future__ import annotations

from torch import nn

from patchline.pipeline.models.layers.patch_dropout import PatchDropout
from patchline.pipeline.models.layers.stochastic_depth import StochasticDepth
from patchline.pipeline.training.config import TrainingConfig


class ModelSchedules:
    """Set the probabilities of a model's random layers by the progress of the training.

    Layers of `patchline.pipeline.models.layers` follow the schedules; those of other libraries
    stay as they are.

    Args:
        config: has the length of the ramp, and the end of the patch dropout.
        model: its probabilities at this moment are those of the full schedule.
    """

    def __init__(self, config: TrainingConfig, model: nn.Module) -> None:
        self._ramp, self._until = config.stochastic_depth_ramp, config.patch_dropout_until
        modules = list(model.modules())
        self._depths = [
            (each, each.drop_probability) for each in modules if isinstance(each, StochasticDepth)
        ]
        self._dropouts = [(each, each.rate) for each in modules if isinstance(each, PatchDropout)]

    def apply(self, progress: float) -> None:
        """Set the probabilities for a progress from 0 to 1."""
        share = min(1.0, progress / self._ramp) if self._ramp else 1.0
        for layer, probability in self._depths:
            layer.drop_probability = share * probability
        for dropout, rate in self._dropouts:
            dropout.rate = rate if progress < self._until else 0.0

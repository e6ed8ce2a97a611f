"""The result of `covering_test`: values without torch, for reports."""

from __future__ import annotations

from typing import Literal

from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.frozen_model import FrozenModel

MapKind = Literal["attention", "gradient"]


class CoveredByMap(FrozenModel):
    """What covering the cells that one kind of map points at does."""

    kind: MapKind
    probability: float
    """Mean probability of the predicted class after it."""
    advantage: MetricEstimate
    """Mean of how much lower it is than after covering random cells, with its t interval."""

    @property
    def holds(self) -> bool:
        """Whether the map beats random cells beyond chance."""
        return self.advantage.low > 0


class CoveringTest(FrozenModel):
    """The result of the test; probabilities are those of the predicted class, calibrated."""

    images: int
    cells: int
    """Number of cells in the grid over the image."""
    covered_cells: int
    before: float
    """Mean probability without a cover."""
    random: float
    """Mean probability with random cells covered."""
    maps: tuple[CoveredByMap, ...]

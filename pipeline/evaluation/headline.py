"""The metric that stands for a whole report: accuracy for one label, mAP for several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from patchline.pipeline.metrics.intervals import MetricEstimate

MAIN_METRICS = ("accuracy", "mAP")
"""Of one label for each image, and of sets of labels."""


class Headline(NamedTuple):
    """The main metric of a report."""

    name: str
    """Without the split: `accuracy`, `mAP`."""
    estimate: MetricEstimate

    @property
    def short(self) -> str:
        """The value as a share; that of accuracy needs no name."""
        share = f"{self.estimate.value:.1%}"
        return share if self.name == "accuracy" else f"{self.name} {share}"

    @property
    def sentence(self) -> str:
        """The metric with its value and its interval, without a full stop."""
        low, high = self.estimate.low, self.estimate.high
        return f"{self.name} {self.estimate.value:.1%} (95% interval {low:.1%} to {high:.1%})"


def headline_of(metrics: Mapping[str, MetricEstimate], split: str = "test") -> Headline | None:
    """Return the main metric among those of a report, by name such as `test/mAP`; None if none."""
    for name in MAIN_METRICS:
        if estimate := metrics.get(f"{split}/{name}"):
            return Headline(name, estimate)
    return None

"""The metric that stands for a whole report: accuracy for one label, mAP for several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.metrics.names import MAIN

MAIN_METRICS = ("accuracy", MAIN)
"""Of one label for each image, and of sets of labels."""
_OF_ANY_LABEL_SETS = "exact_match"
"""A metric that sets of labels have even where their mAP is unknown."""


class Headline(NamedTuple):
    """The main metric of a report."""

    name: str
    """Name of the metric without the split, such as `accuracy` or `mAP`."""
    estimate: MetricEstimate | None
    """The metric; None if it is unknown, such as mAP of images that all have the same labels."""

    @property
    def short(self) -> str:
        """The value as a share; that of accuracy needs no name."""
        if self.estimate is None:
            return f"{self.name} unknown"
        share = f"{self.estimate.value:.1%}"
        return share if self.name == "accuracy" else f"{self.name} {share}"

    @property
    def sentence(self) -> str:
        """The metric with its value and its interval, without a full stop."""
        if self.estimate is None:
            return f"{self.name} unknown"
        low, high = self.estimate.low, self.estimate.high
        return f"{self.name} {self.estimate.value:.1%} (95% interval {low:.1%} to {high:.1%})"


def headline_of(metrics: Mapping[str, MetricEstimate], split: str = "test") -> Headline | None:
    """Return the main metric of a classifier's report, whose metrics have names as `test/mAP`.

    None if the report is not that of a classifier.
    """
    for name in MAIN_METRICS:
        if estimate := metrics.get(f"{split}/{name}"):
            return Headline(name, estimate)
    return Headline(MAIN, None) if f"{split}/{_OF_ANY_LABEL_SETS}" in metrics else None

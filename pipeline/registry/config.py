"""Settings of the promotion: the gates that a version has to pass to become champion."""

from __future__ import annotations

import difflib
from typing import Annotated

from pydantic import AfterValidator, Field

from pipeline.metrics.names import METRICS
from pipeline.section import Section


def _named(metric: str) -> None:
    if metric in METRICS:
        return
    close = difflib.get_close_matches(metric, METRICS, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise ValueError(f"'{metric}' is not a metric; {hint}There are: {', '.join(METRICS)}")


def _minima(limits: dict[str, float]) -> dict[str, float]:
    for metric, limit in limits.items():
        _named(metric)
        if not METRICS[metric].higher_is_better:
            raise ValueError(f"'{metric}' is better when it is smaller; set promotion.maximum")
        if limit > 1:
            raise ValueError(f"'{metric}' is never above 1, so {limit:g} refuses all; 90 % is 0.9")
    return limits


def _maxima(limits: dict[str, float]) -> dict[str, float]:
    for metric in limits:
        _named(metric)
        if METRICS[metric].higher_is_better:
            raise ValueError(f"'{metric}' is better when it is larger; set promotion.minimum")
    return limits


class PromotionConfig(Section):
    """What a version has to show before it becomes champion."""

    automatic: bool = False
    """Promote at the end of a run when every gate passes; otherwise a person decides."""

    approval: bool = False
    """Ask a person at the end of a run; `patchline up` has to run, `patchline approve` answers."""

    approval_hours: Annotated[float, Field(gt=0, le=8760)] = 72
    """Hours that a person has to answer; then the promotion is refused."""

    minimum: Annotated[dict[str, float], AfterValidator(_minima)] = Field(default_factory=dict)
    """Lowest values of metrics of its own test report: promotion.minimum.accuracy 0.9."""

    maximum: Annotated[dict[str, float], AfterValidator(_maxima)] = Field(default_factory=dict)
    """Highest values of metrics that are better when smaller: promotion.maximum.log_loss 0.5."""

    max_calibration_error: Annotated[float, Field(gt=0, le=1)] | None = None
    """Highest expected calibration error of the version's own test report; null asks nothing."""

    better_than_champion: bool = True
    """The paired test must find the version better than the champion; a tie is not better."""

    significance: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Largest p-value of McNemar's exact test that counts as better."""

    min_images: Annotated[int, Field(ge=1)] = 50
    """Fewest images that neither model was trained or chosen on; with fewer nothing is decided."""

    max_class_drop: Annotated[float, Field(gt=0, le=1)] | None = 0.1
    """Largest loss of recall of any class against the champion; null asks nothing."""

    class_min_images: Annotated[int, Field(ge=1)] = 20
    """Classes with fewer comparable images are named, but their loss of recall is not judged."""

    max_latency_ms: Annotated[float, Field(gt=0)] | None = None
    """Highest median milliseconds for one image on this machine; null asks nothing."""

    package_check: bool = True
    """The package must load and predict in a clean process, and agree with its own report."""

"""Compute the coordinates of the report's inline SVG charts; `parts.html.j2` draws them.

The PNG plots, the confusion matrix among them, are drawn by `plots.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from patchline.pipeline.evaluation.report import EvaluationReport
from patchline.pipeline.metrics.calibration import ReliabilityBin


class Frame(NamedTuple):
    """A chart's inner area in SVG units, and the values at its edges."""

    left: float
    top: float
    right: float
    bottom: float
    x_low: float = 0.0
    x_high: float = 1.0
    y_low: float = 0.0
    y_high: float = 1.0

    def x(self, value: float) -> float:
        """Return the horizontal coordinate of a value."""
        share = (value - self.x_low) / ((self.x_high - self.x_low) or 1.0)
        return round(self.left + share * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        """Return the vertical coordinate of a value; larger values are higher."""
        share = (value - self.y_low) / ((self.y_high - self.y_low) or 1.0)
        return round(self.bottom - share * (self.bottom - self.top), 1)


class Mark(NamedTuple):
    """A bin of the reliability diagram."""

    x: float
    y: float
    low: float
    high: float
    column_left: float
    column_width: float
    column_height: float
    """Height in the histogram below, from 0 to 1."""
    words: str


class ReliabilityChart(NamedTuple):
    """The reliability diagram."""

    frame: Frame
    marks: list[Mark]
    uncalibrated: str
    """Points of the polyline."""
    mean_confidence: float
    """Mean of the highest probability of each image."""


class Curve(NamedTuple):
    """One line of a chart."""

    name: str
    points: str
    places: list[tuple[float, float]]
    last: float


class CurveChart(NamedTuple):
    """A metric by epoch, in training and validation."""

    title: str
    frame: Frame
    curves: list[Curve]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]


def reliability_chart(report: EvaluationReport) -> ReliabilityChart:
    """Return the diagram of the calibrated probabilities and the line of the uncalibrated ones."""
    frame = Frame(left=44, top=12, right=348, bottom=262)
    most = max(bin_.images for bin_ in report.reliability)
    total = sum(bin_.images for bin_ in report.reliability)
    return ReliabilityChart(
        frame=frame,
        marks=[_mark(frame, bin_, most) for bin_ in report.reliability if bin_.images],
        uncalibrated=" ".join(
            f"{frame.x(bin_.confidence)},{frame.y(bin_.accuracy.value)}"
            for bin_ in report.uncalibrated_reliability
            if bin_.images
        ),
        mean_confidence=sum(bin_.images * bin_.confidence for bin_ in report.reliability) / total,
    )


def _mark(frame: Frame, bin_: ReliabilityBin, most: int) -> Mark:
    left, right = frame.x(bin_.low), frame.x(bin_.high)
    return Mark(
        x=frame.x(bin_.confidence),
        y=frame.y(bin_.accuracy.value),
        low=frame.y(bin_.accuracy.low),
        high=frame.y(bin_.accuracy.high),
        column_left=left + 1,
        column_width=round(right - left - 2, 1),
        column_height=bin_.images / most,
        words=f"confidence {bin_.confidence:.0%}, accuracy {bin_.accuracy.value:.0%}, "
        f"{bin_.images:,} images",
    )


def curve_charts(
    history: Sequence[Mapping[str, Any]], keys: Sequence[str] = ("loss", "accuracy")
) -> list[CurveChart]:
    """Return charts of loss and accuracy by epoch; none without a history."""
    if not history:
        return []
    return [_curve_chart(history, key) for key in keys]


def _curve_chart(history: Sequence[Mapping[str, Any]], key: str) -> CurveChart:
    from matplotlib.ticker import MaxNLocator

    epochs = [float(record["epoch"]) for record in history]
    values = {
        split: [float(record[f"{split}_{key}"]) for record in history]
        for split in ("train", "validation")
    }
    every = [value for line in values.values() for value in line if math.isfinite(value)] or [0.0]
    y_ticks = [float(tick) for tick in MaxNLocator(4).tick_values(min(every), max(every))]
    x_low, x_high = min(epochs), max(epochs)
    x_ticks = [
        float(tick)
        for tick in MaxNLocator(6, integer=True).tick_values(x_low, x_high)
        if x_low <= tick <= x_high
    ]
    frame = Frame(44, 28, 404, 204, x_low, x_high, y_ticks[0], y_ticks[-1])
    return CurveChart(
        title=key.capitalize(),
        frame=frame,
        curves=[_curve(frame, name, epochs, line) for name, line in values.items()],
        x_ticks=[(frame.x(tick), f"{tick:g}") for tick in x_ticks],
        y_ticks=[(frame.y(tick), f"{tick:.4g}") for tick in y_ticks],
    )


def _curve(frame: Frame, name: str, epochs: Sequence[float], values: Sequence[float]) -> Curve:
    places = [
        (frame.x(epoch), frame.y(value))
        for epoch, value in zip(epochs, values, strict=True)
        if math.isfinite(value)
    ]
    few = 3
    return Curve(
        name=name,
        points=" ".join(f"{x},{y}" for x, y in places),
        places=places if len(places) < few else places[-1:],
        last=values[-1],
    )

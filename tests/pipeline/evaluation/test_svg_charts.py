"""The drawings of the page put every number where it belongs."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.evaluation.svg_charts import Frame, curve_charts, reliability_chart
from tests.pipeline.evaluation.conftest import report_of


def test_a_frame_maps_its_edges_to_its_corners() -> None:
    """Small numbers lie left and low, large ones right and high."""
    frame = Frame(10, 20, 110, 220, x_low=1, x_high=5, y_low=-1, y_high=1)
    assert (frame.x(1), frame.x(3), frame.x(5)) == (10, 60, 110)
    assert (frame.y(-1), frame.y(0), frame.y(1)) == (220, 120, 20)


def test_every_bin_with_images_has_a_mark(tmp_path: Path) -> None:
    """Marks stand at confidence and accuracy, inside their whiskers."""
    report = report_of(tmp_path, ("a", "b", "c"))
    chart = reliability_chart(report)
    bins = [bin_ for bin_ in report.reliability if bin_.images]
    assert len(chart.marks) == len(bins) > 0
    for mark, bin_ in zip(chart.marks, bins, strict=True):
        assert mark.x == chart.frame.x(bin_.confidence)
        assert mark.y == chart.frame.y(bin_.accuracy.value)
        assert mark.high <= mark.y <= mark.low
    assert max(mark.column_height for mark in chart.marks) == 1
    mean = sum(bin_.images * bin_.confidence for bin_ in bins) / report.images
    assert chart.mean_confidence == pytest.approx(mean)


def test_curves_lie_inside_their_frame() -> None:
    """Every epoch has a point in the frame; the ticks frame the values; no history, no charts."""
    history = [
        {
            "epoch": epoch,
            "train_loss": 3.1 / epoch,
            "validation_loss": 3.3 / epoch,
            "train_accuracy": 1 - 0.5 / epoch,
            "validation_accuracy": 1 - 0.6 / epoch,
        }
        for epoch in range(1, 8)
    ]
    assert curve_charts([]) == []
    loss, accuracy = curve_charts(history)
    assert (loss.title, accuracy.title) == ("Loss", "Accuracy")
    for chart in (loss, accuracy):
        for curve in chart.curves:
            points = [tuple(map(float, point.split(","))) for point in curve.points.split()]
            assert len(points) == 7
            for x, y in points:
                assert chart.frame.left <= x <= chart.frame.right
                assert chart.frame.top <= y <= chart.frame.bottom
        assert [text for _, text in chart.x_ticks] == [str(epoch) for epoch in range(1, 8)]
    assert loss.curves[1].last == pytest.approx(3.3 / 7)


def test_a_single_epoch_and_a_loss_that_is_no_number_are_drawn() -> None:
    """One epoch is a point in a frame; a loss that left the numbers is left out."""
    record = {
        "epoch": 1,
        "train_loss": float("nan"),
        "validation_loss": 2.0,
        "train_accuracy": 0.1,
        "validation_accuracy": 0.1,
    }
    loss, accuracy = curve_charts([record])
    assert [len(curve.places) for curve in loss.curves] == [0, 1]
    assert [len(curve.places) for curve in accuracy.curves] == [1, 1]

"""Pictures of an evaluation, as PNG files under fixed names so that runs can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.atomic_files import replacing
from pipeline.evaluation.report import EvaluationReport, ImageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CONFUSION, CURVES, ERRORS = "confusion_matrix.png", "training_curves.png", "confident_errors.png"
_MOST_LABELLED_CLASSES = 30
_MOST_NUMBERED_CLASSES = 20
_INK, _BLUE, _ORANGE, _GREY = "#1b1f24", "#2563a8", "#c2571a", "#8a929c"


def confusion_figure(report: EvaluationReport, file: Path) -> Path:
    """Draw the confusion matrix, shaded by the share of each true class."""
    counts = np.array(report.confusion)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(12.0, 3.2 + 0.42 * len(counts))
    figure = _figure(size + 0.6, size)
    axes = figure.add_subplot()
    shown = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(counts) <= _MOST_NUMBERED_CLASSES:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "white" if shares[row, column] > 0.5 else _INK  # noqa: PLR2004 - half
                axes.text(column, row, str(count), ha="center", va="center", color=colour, size=8)
    if len(counts) <= _MOST_LABELLED_CLASSES:
        ticks = range(len(counts))
        axes.set_xticks(ticks, report.classes, rotation=45, ha="right", parse_math=False)
        axes.set_yticks(ticks, report.classes, parse_math=False)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    figure.colorbar(shown, fraction=0.046, label="share of the true class")
    return _save(figure, file)


def curves_figure(history: Sequence[dict[str, float]], file: Path) -> Path:
    """Draw loss and accuracy over the epochs, of training and validation."""
    figure = _figure(9.0, 3.4)
    epochs = [record["epoch"] for record in history]
    for place, key, title in ((1, "loss", "Loss"), (2, "accuracy", "Accuracy")):
        axes = figure.add_subplot(1, 2, place)
        for split, colour in (("train", _ORANGE), ("validation", _BLUE)):
            values = [record[f"{split}_{key}"] for record in history]
            marker = "o" if len(values) < 3 else ""  # noqa: PLR2004 - one or two points make no line
            axes.plot(epochs, values, color=colour, label=split, marker=marker, linewidth=1.6)
        axes.set_title(title, loc="left", size=11)
        axes.set_xlabel("epoch")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
    return _save(figure, file)


def errors_figure(errors: Sequence[ImageError], images: np.ndarray[Any, Any], file: Path) -> Path:
    """Draw the errors that the model was surest of, with what it said."""
    columns = 6
    rows = max(1, -(-len(errors) // columns))
    figure = _figure(1.7 * columns, 2.15 * rows)
    if not errors:
        figure.text(0.5, 0.5, "no errors", ha="center", color=_GREY)
    for place, error in enumerate(errors, start=1):
        axes = figure.add_subplot(rows, columns, place)
        pixels = images[error.row]
        axes.imshow(pixels.squeeze(), cmap="gray", vmin=0, vmax=255)
        axes.set_axis_off()
        title = f"{_short(error.label)} → {_short(error.predicted)}\n{error.probability:.0%} sure"
        axes.set_title(title, size=9, parse_math=False)
    return _save(figure, file)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _short(name: str, limit: int = 14) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"


def _save(figure: Figure, file: Path) -> Path:
    with replacing(file) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
    return file

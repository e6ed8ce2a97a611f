"""Plot an evaluation: confusion matrix, reliability, training curves, galleries.

Each is a PNG file with a fixed name, so that runs can be compared. The HTML reports show the same
reliability diagram and training curves as vector graphics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from patchline.pipeline.evaluation.galleries import GalleryImage, LabelSetImage
from patchline.pipeline.evaluation.metrics.confusion_matrix import build_shown_matrix
from patchline.pipeline.evaluation.report import EvaluationReport, ModelReport
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.pipeline.workspace.files.fonts import families_showing, font_showing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CONFUSION, CONFUSION_SHARES = "confusion_matrix.png", "confusion_matrix_normalised.png"
RELIABILITY, CURVES = "reliability.png", "training_curves.png"
ERRORS, UNCERTAIN = "confident_errors.png", "least_certain.png"
LABEL_ERRORS = "likely_label_errors.png"
FALSE_POSITIVES, FALSE_NEGATIVES = "false_positives.png", "false_negatives.png"
MISSING_LABELS = "missing_labels.png"

_MOST_NUMBERED_CLASSES = 21
_MOST_TILES, _COLUMNS = 24, 6
_TILE_WIDTH, _TILE_HEIGHT = 1.7, 2.15
_SIDE, _GAP, _WORDS = 1.55, 0.08, 0.5
"""Inches in a tile: longest side of the image, gap, and height of the caption above it."""
_TITLES = {"map": "mAP"}
_MATRIX_PAD = 0.15
"""Inches at the sides: the layout takes the rotated names for narrower than they are."""
INK, BLUE, ORANGE, GREY = "#1b1f24", "#2563a8", "#c2571a", "#8a929c"
"""Colours of the plots."""


def plot_confusion_matrix(report: EvaluationReport, file: Path, *, shares: bool = False) -> Path:
    """Plot the confusion matrix, shaded by the share of each true class.

    With more than 30 classes, only those of the most confused pairs are shown. The numbers are
    images, or percent of the true class with `shares`.
    """
    matrix = build_shown_matrix(report.cells, report.classes)
    rows, columns = len(matrix.rows), len(matrix.columns)
    figure = new_figure(min(12.5, 3.8 + 0.42 * columns), min(12.0, 3.2 + 0.42 * rows))
    axes = figure.add_subplot()
    shown = axes.imshow(matrix.shares, cmap="Blues", vmin=0, vmax=1)
    if rows < _MOST_NUMBERED_CLASSES:
        for (row, column), count in np.ndenumerate(np.array(matrix.counts)):
            share = matrix.shares[row][column]
            if count:
                colour = "white" if share > 0.5 else INK  # noqa: PLR2004 - half
                text = f"{100 * share:.0f}" if shares else str(count)
                axes.text(column, row, text, ha="center", va="center", color=colour, size=8)
    names = [_short(name, 24) for name in drawable_names(matrix.columns, report.classes)]
    family: dict[str, Any] = {"family": families_showing(names)}
    axes.set_xticks(range(columns), names, rotation=45, ha="right", parse_math=False, **family)
    axes.set_yticks(range(rows), names[:rows], parse_math=False, **family)
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=_MATRIX_PAD)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    axes.set_title("% of the true class" if shares else "images", loc="left", size=10)
    figure.colorbar(shown, fraction=0.046, label="share of the true class")
    return save_figure(figure, file)


class DiagramWords(NamedTuple):
    """What the parts of a reliability diagram are called."""

    share: str
    counted: str
    confidence: str
    before: str


OF_ONE_LABEL = DiagramWords("accuracy", "images", "confidence", "without calibration")
OF_LABEL_SETS = DiagramWords(
    "share of the images that have the label", "pairs", "probability of a label", "uncalibrated"
)


def reliability_diagram(report: ModelReport, words: DiagramWords) -> Figure:
    """Return the reliability diagram: accuracy against confidence, with intervals."""
    calibrated = report.reliability
    figure = new_figure(5.2, 5.6)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
    bins = [bin_ for bin_ in calibrated if bin_.images]
    before = [bin_ for bin_ in report.uncalibrated_reliability if bin_.images]
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1)
    axes.plot(
        [bin_.confidence for bin_ in before],
        [bin_.accuracy.value for bin_ in before],
        color=ORANGE, linestyle="--", linewidth=1.2, label=words.before,
    )  # fmt: skip
    sure = [bin_.confidence for bin_ in bins]
    axes.vlines(
        sure,
        [bin_.accuracy.low for bin_ in bins],
        [bin_.accuracy.high for bin_ in bins],
        color=BLUE, alpha=0.4, linewidth=4,
    )  # fmt: skip
    right = [bin_.accuracy.value for bin_ in bins]
    axes.plot(sure, right, "o", color=BLUE, label="calibrated, 95% interval")
    axes.set_ylabel(words.share)
    axes.legend(frameon=False, loc="upper left")
    middles = [(bin_.low + bin_.high) / 2 for bin_ in calibrated]
    below.bar(middles, [bin_.images for bin_ in calibrated], width=0.09, color=BLUE)
    below.set_ylabel(words.counted)
    below.set_xlabel(words.confidence)
    below.set_xlim(0, 1)
    axes.set_ylim(-0.02, 1.04)
    plain_axes(axes)
    plain_axes(below)
    return figure


def training_curves(history: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Figure:
    """Return the curves of training and validation by epoch, a plot for each metric."""
    figure = new_figure(4.5 * len(keys), 3.4)
    epochs = [record["epoch"] for record in history]
    for place, key in enumerate(keys, 1):
        axes = figure.add_subplot(1, len(keys), place)
        for split, colour in (("train", ORANGE), ("validation", BLUE)):
            if history and f"{split}_{key}" not in history[0]:
                continue
            values = [record[f"{split}_{key}"] for record in history]
            marker = "o" if len(values) < 3 else ""  # noqa: PLR2004 - one or two points make no line
            axes.plot(epochs, values, color=colour, label=split, marker=marker, linewidth=1.6)
        axes.set_title(_TITLES.get(key, key.capitalize()), loc="left", size=11)
        axes.set_xlabel("epoch")
        plain_axes(axes)
        axes.legend(frameon=False)
    return figure


def plot_gallery(
    images: Sequence[GalleryImage | LabelSetImage],
    pixels_of: Callable[[int], np.ndarray[Any, np.dtype[np.uint8]]],
    file: Path,
    classes: Sequence[str] = (),
) -> Path:
    """Plot at most 24 images of a gallery with what is said about them.

    Args:
        images: the images of the gallery.
        pixels_of: returns the pixels of an image by its position.
        file: the file that the plot is written to.
        classes: names of the model's classes; a name that no font shows is replaced by its number
            among them.
    """
    shown = images[:_MOST_TILES]
    rows = gallery_rows(len(images))
    figure = new_figure(_TILE_WIDTH * _COLUMNS, _TILE_HEIGHT * rows, layout="none")
    if not shown:
        figure.text(0.5, 0.5, "no images", ha="center", color=GREY)
    axes = figure.add_axes((0, 0, 1, 1))  # one for all tiles: one each takes ten times as long
    for place, image in enumerate(shown):
        row, column = divmod(place, _COLUMNS)
        left, top = column * _TILE_WIDTH + _GAP, row * _TILE_HEIGHT + _WORDS
        pixels = pixels_of(image.position)
        height, width = pixels.shape[:2]
        scale = _SIDE / max(height, width)
        extent = (left, left + width * scale, top + height * scale, top)
        axes.imshow(pixels.squeeze(), cmap="gray", vmin=0, vmax=255, extent=extent)
        own, words = image.caption
        names = [_short(n) for n in drawable_names(own, classes)]
        caption = f"{' → '.join(names)}\n{words}"
        middle, family = left + _SIDE / 2, families_showing(names)
        axes.text(
            middle, top - _GAP / 2, caption, ha="center", size=9, parse_math=False, family=family
        )
    axes.set(xlim=(0, _TILE_WIDTH * _COLUMNS), ylim=(_TILE_HEIGHT * rows, 0), aspect="auto")
    axes.set_axis_off()
    return save_figure(figure, file)


def drawable_names(names: Sequence[str], classes: Sequence[str]) -> list[str]:
    """Return class names as a picture shows them.

    A name that no font of this machine shows is replaced by the number that the HTML report gives
    the class, such as `#3`.
    """
    numbers = numbers_without_font(classes)
    return [f"#{numbers[name]}" if name in numbers else name for name in names]


def numbers_without_font(classes: Sequence[str]) -> dict[str, int]:
    """Return the numbers of the classes, from 1, whose names no font of this machine shows."""
    return {name: number for number, name in enumerate(classes, 1) if font_showing(name) is None}


def gallery_rows(images: int) -> int:
    """Return the number of rows, of equal height, in the plot of a gallery."""
    return max(1, -(-min(images, _MOST_TILES) // _COLUMNS))


def new_figure(width: float, height: float, layout: Any = "constrained") -> Figure:
    """Return an empty figure of a size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)


def plain_axes(axes: Axes) -> None:
    """Draw a faint grid, and no frame at the top and on the right."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _short(name: str, limit: int = 14) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"


def save_figure(figure: Figure, file: Path) -> Path:
    """Write a figure as PNG, atomically."""
    with replace_file(file) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
    return file

"""Write the report of a multi-label model: a self-contained HTML file, and plots.

Shapes: N images, K labels; both models have the same labels in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, by_task
from patchline.pipeline.evaluation.comparison import (
    DIFFERENCE,
    ChangedMetric,
    ComparedModels,
    ComparisonSubject,
    PairedValues,
)
from patchline.pipeline.evaluation.config import meaning_of
from patchline.pipeline.evaluation.galleries import LabelSetImage
from patchline.pipeline.evaluation.html_page import (
    picture,
    render,
    thumbnail,
    tinted,
    vector_graphic,
)
from patchline.pipeline.evaluation.html_report import PagePictures, PixelsOf, ReportPage, by_column
from patchline.pipeline.evaluation.metrics import curve_areas
from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups
from patchline.pipeline.evaluation.metrics.label_calibration import listed
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import LabelMetrics
from patchline.pipeline.evaluation.metrics.multi_label.paired_bootstrap import (
    PairedMetric,
    ThresholdedScores,
    paired_metrics,
)
from patchline.pipeline.evaluation.metrics.names import MAIN, MULTI_LABEL_METRICS
from patchline.pipeline.evaluation.multi_label.label_set_report import MultiLabelReport
from patchline.pipeline.evaluation.plots import (
    CURVES,
    FALSE_NEGATIVES,
    FALSE_POSITIVES,
    MISSING_LABELS,
    OF_LABEL_SETS,
    RELIABILITY,
    Tile,
    diagram_of,
    plot_tiles,
    save_figure,
    training_curves,
)
from patchline.pipeline.workspace.files.atomic_files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_KEY_METRICS = ("micro_mAP", "macro_f1", "samples_f1", "exact_match", "ranking_loss", "ece")
_MOST_OPEN_LABELS, _MOST_LISTED_LABELS = 20, 500
_OPEN_IMAGES = 12
_CURVES = ("loss", "map")
_MAP_WORDS = (
    " The second picture shows which parts support this label, by gradient times pixel: the "
    "brighter, the more."
)


_Shown = tuple[LabelSetImage, str, str]
"""An image with its data URI, and that of the map over it; the latter may be empty."""


class _LabelSetGallery(NamedTuple):
    key: str
    title: str
    words: str
    images: list[_Shown]


def write_label_set_plots(
    report: MultiLabelReport,
    pixels_of: PixelsOf,
    folder: Path,
    history: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write every plot under its fixed name; training curves only with a history."""
    save_figure(_diagram(report), folder / RELIABILITY)
    for images, name in (
        (report.confident_false_positives, FALSE_POSITIVES),
        (report.confident_false_negatives, FALSE_NEGATIVES),
        (report.missing_labels, MISSING_LABELS),
    ):
        tiles = [_tile(image) for image in images]
        plot_tiles(tiles, pixels_of, folder / name, report.classes)
    if history:
        save_figure(training_curves(history, _CURVES), folder / CURVES)


def _diagram(report: MultiLabelReport) -> Figure:
    return diagram_of(report.reliability, report.uncalibrated_reliability, OF_LABEL_SETS)


def _tile(image: LabelSetImage) -> Tile:
    words = f"{image.probability:.0%}, threshold {image.threshold:.0%}"
    return Tile(image.position, (image.label,), words)


def write_label_set_html(
    report: MultiLabelReport,
    page: ReportPage,
    pictures: PagePictures,
    file: Path,
) -> None:
    """Write the page.

    Args:
        report: the metrics.
        page: the text.
        pictures: what the page shows besides the text.
        file: the HTML file to write.
    """
    labels = sorted(report.by_label, key=_worst_first)
    metrics = [
        (key.removeprefix(f"{report.split}/"), estimate) for key, estimate in report.metrics.items()
    ]
    text = render(
        "label_set_report.html.j2",
        package="patchline.pipeline.evaluation.multi_label",
        report=report,
        page=page,
        notes=[*page.notes, *report.notes],
        metrics=[(key, MULTI_LABEL_METRICS[key], estimate) for key, estimate in metrics],
        key_metrics=[
            (key, MULTI_LABEL_METRICS[key], estimate)
            for key, estimate in metrics
            if key in _KEY_METRICS
        ],
        worst=labels[:_MOST_OPEN_LABELS],
        other_labels=labels[_MOST_OPEN_LABELS:_MOST_LISTED_LABELS],
        unlisted_labels=max(0, len(labels) - _MOST_LISTED_LABELS),
        calibration=report.calibration.sentence(report.classes),
        thresholds=report.thresholds.sentence(report.classes),
        unfitted=frozenset(report.thresholds.unfitted(report.classes)),
        unknown=listed(report.unknown_labels),
        galleries=[gallery for gallery in _galleries(report, pictures) if gallery.images],
        explained=pictures.looked.pages,
        slices=by_column(report.slices),
        slice_meanings={column: meaning_of(column) for column in report.config.slices},
        samples_f1=report.metrics[f"{report.split}/samples_f1"],
        open_images=_OPEN_IMAGES,
        reliability=vector_graphic(_diagram(report)),
        curves=vector_graphic(training_curves(pictures.history, _CURVES))
        if pictures.history
        else "",
        preview=picture(pictures.preview) if pictures.preview else "",
    )
    write_text(file, text)


def _worst_first(row: LabelMetrics) -> tuple[bool, float]:
    """Sort by average precision; labels of all images, or of none, last."""
    return row.average_precision is None, (
        row.average_precision.value if row.average_precision else 0.0
    )


def _galleries(report: MultiLabelReport, pictures: PagePictures) -> list[_LabelSetGallery]:
    maps = pictures.looked.maps

    def shown(images: Sequence[LabelSetImage], *, mapped: bool = False) -> list[_Shown]:
        rows = []
        for image in images:
            pixels = pictures.pixels_of(image.position)
            seen_hw = maps.get(image.position) if mapped else None
            over = "" if seen_hw is None else thumbnail(tinted(seen_hw, pixels))
            rows.append((image, thumbnail(pixels), over))
        return rows

    map_words = _MAP_WORDS if maps else ""
    return [
        _LabelSetGallery(
            "false-positives",
            "False positives",
            f"{report.false_positives:,} predicted labels are not in the data: the most probable "
            f"first, one for each image.{map_words}",
            shown(report.confident_false_positives, mapped=True),
        ),
        _LabelSetGallery(
            "false-negatives",
            "False negatives",
            f"{report.false_negatives:,} labels are in the data and not predicted: the least "
            "probable first, one for each image.",
            shown(report.confident_false_negatives),
        ),
        _LabelSetGallery(
            "missing-labels",
            "Labels that may be missing",
            f"Confident learning suspects that {report.suspected_labels:,} labels are missing in "
            "the data, most suspicious first. Check them against the image: a model that confuses "
            "two labels also suspects correct ones.",
            shown(report.missing_labels),
        ),
    ]


Array = np.ndarray[Any, Any]


class LabelSetComparison(ComparedModels):
    """The result of a comparison; differences are the challenger minus the champion."""

    METRIC = MAIN
    ON = "on"
    LOSES = "average precision"
    WORDS = by_task(MULTI_LABEL)
    COLUMNS = (DIFFERENCE,)
    TEMPLATE = "label_set_comparison.html.j2"

    task: Literal["multi_label"] = "multi_label"
    paired: dict[str, PairedMetric]
    """Paired bootstrap of each metric, mAP first; a is the champion, b the challenger."""
    by_label: tuple[ChangedMetric, ...]
    """The average precision of every label, in the order of the model's outputs."""

    @property
    def changes(self) -> tuple[ChangedMetric, ...]:
        """Of every label."""
        return self.by_label

    @property
    def pairs(self) -> dict[str, PairedValues]:
        """Of all paired metrics."""
        return {
            MULTI_LABEL_METRICS[key].title: PairedValues(
                pair.a, pair.b, pair.difference, pair.p_value
            )
            for key, pair in self.paired.items()
        }


def compare_label_sets(
    models: ComparisonSubject,
    _paths: Sequence[str],
    labels_NK: Array,
    before: ThresholdedScores,
    now: ThresholdedScores,
) -> LabelSetComparison:
    """Compare two models on the same N images.

    Args:
        models: the two, and the images.
        labels_NK: 1 where an image has a label, else 0.
        before: the answers of the champion.
        now: those of the challenger.
    """
    groups = ImageGroups.of(models.groups_N)
    return LabelSetComparison(
        **models.fields(len(labels_NK), groups),
        paired=paired_metrics(labels_NK, before, now, groups=groups),
        by_label=tuple(
            ChangedMetric(
                name=name,
                images=int(labels_NK[:, k].sum()),
                groups=_groups_with(labels_NK[:, k], groups),
                champion=curve_areas.average_precision(
                    before.probabilities_NK[:, k], labels_NK[:, k] > 0, groups
                ),
                challenger=curve_areas.average_precision(
                    now.probabilities_NK[:, k], labels_NK[:, k] > 0, groups
                ),
            )
            for k, name in enumerate(models.classes)
        ),
    )


def _groups_with(label_N: Array, groups: ImageGroups | None) -> int | None:
    """Return the number of groups that the images with a label form; None if none has several."""
    own = groups.among(np.flatnonzero(label_N)) if groups else None
    return own.count if own else None

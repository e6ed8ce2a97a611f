"""The page of one check: its result, and the images that differ most beside the nearest reference.

Shapes: M reference images, N images, H, W and C of an image, D features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from patchline.pipeline.evaluation.html_page import render, thumbnail
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.models.reference_images import ReferenceImages, as_kept
from patchline.pipeline.registry.version_records import VersionRecords, image_reader
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.plugins.tools.monitor.arrived_images import Computed
from patchline.plugins.tools.monitor.check_journal import StreamCheck
from patchline.plugins.tools.monitor.drift_tests import DriftTest, FeatureKernel

Array = np.ndarray[Any, Any]
_SHOWN, _NEAREST, _MOST_LABELS, _MOST_CHECKS = 12, 3, 20, 100
_HEIGHT, _WIDTH = 130.0, 1000.0


class _Shown(NamedTuple):
    """A reference image on the page."""

    name: str
    prediction: str
    picture: str
    """A data URI; empty if the image is not there."""


class _Arrived(NamedTuple):
    """A new image on the page, and the nearest reference images."""

    name: str
    prediction: str
    confidence: float
    picture: str
    nearest: tuple[_Shown, ...]


class _HistoryPoint(NamedTuple):
    """A check in the history."""

    x: float
    y: float
    alarm: bool


@dataclass(frozen=True)
class PageImages:
    """What the page needs to show images.

    Attributes:
        names: the name of each new image.
        picture: returns a new image (H, W, C) by its place; None if it is not there.
        computed: what the version computes for the new images.
        kernel: the kernel of the reference's features; None if features are not known.
    """

    names: Sequence[str]
    picture: Callable[[int], Array | None]
    computed: Computed
    kernel: FeatureKernel | None


def write_page(
    check: StreamCheck,
    earlier: Sequence[StreamCheck],
    stream: str,
    records: VersionRecords,
    reference: ReferenceImages,
    images: PageImages,
) -> None:
    """Write the page of a check to its place.

    Args:
        check: the check to show.
        earlier: checks of the same stream.
        stream: the stream that the check belongs to.
        records: the version's records.
        reference: the version's reference images.
        images: new images.
    """
    level, checks = check.tests.level, [*earlier, check][-_MOST_CHECKS:]
    strongest = max(6.0, *(_strength(each) for each in checks), -math.log10(level) + 1)
    strongest = min(strongest, 20.0)

    def place(strength: float) -> float:
        return round(140 - _HEIGHT * min(strength, strongest) / strongest, 1)

    history = [
        _HistoryPoint(
            round(_WIDTH * (number + 0.5) / len(checks), 1), place(_strength(each)), each.drift
        )
        for number, each in enumerate(checks)
    ]
    text = render(
        "drift.html.j2",
        package="patchline.plugins.tools.monitor",
        check=check,
        stream=Path(stream).name or stream,
        model=f"{records.reference.name}, version {records.reference.version}",
        p_value=p_value_words,
        effect=effect_words,
        signed=_format_change,
        space="features" if images.kernel is not None else "outputs",
        images=_images(records, reference, images),
        most_labels=_MOST_LABELS,
        history=history,
        level_y=place(-math.log10(level)),
        history_words=_history_words(checks),
    )
    write_text(check.page, text)


def p_value_words(value: float) -> str:
    """Return a p-value, a level or a rate with two digits."""
    return f"{value:.2g}"


def effect_words(test: DriftTest) -> str:
    """Return how large a difference is, with its unit; that it is not known, if so."""
    return "not known" if test.effect is None else f"{test.effect:.2g} ({test.effect_unit})"


def _strength(check: StreamCheck) -> float:
    return -math.log10(max(check.tests.p_value, 1e-300))


def _history_words(checks: Sequence[StreamCheck]) -> str:
    alarms = [str(each.number) for each in checks if each.drift]
    found = f"drift in check {', '.join(alarms)}" if alarms else "no drift"
    which = f"Check {checks[0].number}"
    which += f" to {checks[-1].number}" if len(checks) > 1 else ""
    return f"{which}: {found}."


def _format_change(change: MetricEstimate) -> str:
    def points(value: float) -> str:
        return f"{100 * value:+.1f}"

    return f"{points(change.value)} points ({points(change.low)} to {points(change.high)})"


def most_different(images: PageImages, reference: ReferenceImages) -> Array:
    """Return the places of the new images that differ most, the most different first."""
    if images.kernel is not None and images.computed.features_ND is not None:
        excess_N = images.kernel.excess(as_kept(images.computed.features_ND))
        order_N: Array = np.argsort(-excess_N, kind="stable")
        return order_N[:_SHOWN]
    gaps_NM = _squares(images.computed.probabilities_NK, reference.probabilities_MK)
    order_N = np.argsort(-gaps_NM.min(axis=1), kind="stable")
    return order_N[:_SHOWN]


def _squares(first_ND: Array, second_MD: Array) -> Array:
    """Return the squared distance (N, M) of each pair."""
    first, second = first_ND.astype(np.float64), second_MD.astype(np.float64)
    squares: Array = (
        (first**2).sum(axis=1)[:, None] - 2 * first @ second.T + (second**2).sum(axis=1)[None]
    )
    return squares


def _images(
    records: VersionRecords, reference: ReferenceImages, images: PageImages
) -> list[_Arrived]:
    package, computed = records.package, images.computed
    places = most_different(images, reference)
    if images.kernel is not None and computed.features_ND is not None:
        squares = _squares(as_kept(computed.features_ND[places]), reference.features_MD)
    else:
        squares = _squares(computed.probabilities_NK[places], reference.probabilities_MK)
    nearest = np.argsort(squares, axis=1, kind="stable")[:, :_NEAREST]
    table = pd.DataFrame({"path": reference.paths, "sha256": reference.sha256})
    read = image_reader(table, records.root, package.mapping)

    def prediction(row_K: Array) -> tuple[str, float]:
        answer = package.writer.verdict(np.asarray(row_K, np.float64), 1)
        if "labels" in answer:
            names = ", ".join(each["label"] for each in answer["labels"])
            return names or "no label", float(row_K.max())
        return str(answer["label"]), float(row_K.max())

    shown = []
    for place, near in zip(places.tolist(), nearest.tolist(), strict=True):
        name, confidence = prediction(computed.probabilities_NK[place])
        others = tuple(
            _Shown(
                reference.paths[other],
                prediction(reference.probabilities_MK[other])[0],
                _picture(read(other)),
            )
            for other in near
        )
        picture = _picture(images.picture(place))
        shown.append(_Arrived(images.names[place], name, confidence, picture, others))
    return shown


def _picture(pixels_HWC: Array | None) -> str:
    return "" if pixels_HWC is None else thumbnail(pixels_HWC)

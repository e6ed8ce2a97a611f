"""How often the sets of a package hold the true class, and images get warnings; with labels.

Shapes: N images, K classes, D features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.data.reading.image_quality import (
    BLANK,
    BLURRED,
    DARK,
    ImageQuality,
    QualityLimits,
    faults,
    quality_of,
)
from patchline.pipeline.evaluation.answer_rules_fit import ReferenceFeatures
from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.evaluation.metrics.conformal import set_members
from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups, share, share_of_some
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate, proportion
from patchline.pipeline.evaluation.predictions import Predictions, groups_of, image_groups
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import AnswerRules, SetThreshold
from patchline.pipeline.workspace.files.atomic_files import open_replacing
from patchline.pipeline.workspace.files.stored_images import StoredImages

Array = np.ndarray[Any, Any]
REFERENCE_FILE = "reference_features.npz"
"""In the folder of the report; packages have it beside `model.json`."""
TOO_SMALL, FAR = "too_small", "far"
NO_FEATURES = "no features of these images are known"
SAME_IMAGES = "the limit comes from these images, since the model was trained on all others"
_MOST_MEASURED = 2000
_SLACK = 1 - 1e-5


class ClassCoverage(FrozenModel):
    """How often the sets of a class's images hold that class."""

    name: str
    covered: MetricEstimate


class SetCheck(FrozenModel):
    """Prediction sets of one nominal coverage, on images with labels."""

    coverage: float
    """Nominal."""
    covered: MetricEstimate | None
    """Share of the images whose set holds the true class; None if there are no sets."""
    mean_size: float | None = None
    """Mean number of classes in a set."""
    single: MetricEstimate | None = None
    """Share of the sets that hold a single class."""
    by_class: tuple[ClassCoverage, ...] = ()
    """Of classes with enough images; the worst first."""
    each_class: bool = False
    """Whether each class has its own threshold, so that the coverage is meant for each."""
    unknown: str = ""
    """Why there are no sets."""

    @property
    def is_broken(self) -> bool:
        """Whether the coverage of these images is below the nominal one, beyond chance."""
        return self.covered is not None and self.covered.high < self.coverage


class WarningCheck(FrozenModel):
    """How many images get one warning; an image of the usual kind should get none."""

    kind: str
    warned: MetricEstimate | None
    """None if the warning is not known, or if these images cannot tell how often it is given."""
    promised: float | None = None
    """Share that was chosen; None where a limit has no chosen share, or is not known."""
    unknown: str = ""
    """Why the warning is never given, or its share not known."""

    @property
    def without_share(self) -> str:
        """What is said where the share is not known."""
        if self.promised is None:
            return f"not known, so it is never given: {self.unknown}"
        return (
            f"given to {self.promised:.1%} of new images like those that its limit comes from, as "
            f"chosen; its share is not measured here: {self.unknown}"
        )


class AnswersReport(FrozenModel):
    """Sets and warnings on the images of a report."""

    rules: AnswerRules
    sets: tuple[SetCheck, ...]
    """By rising coverage."""
    warnings: tuple[WarningCheck, ...]
    groups: int = 0
    """Number of groups of these images, by which intervals of sets are computed. 0 without any;
    the warnings' intervals take images as independent."""

    @property
    def chosen(self) -> SetCheck:
        """The sets that an answer has unless another coverage is asked for."""
        return next(each for each in self.sets if each.coverage == self.rules.coverage)

    def metrics(self, split: str) -> dict[str, MetricEstimate]:
        """Return the metrics to log, by name; what is not known is absent."""
        chosen, named = self.chosen, {}
        if chosen.covered is not None and chosen.single is not None:
            named["set_coverage"] = chosen.covered
            named["single_class_sets"] = chosen.single
        for each in self.warnings:
            if each.warned is not None:
                named[f"warnings_{each.kind}"] = each.warned
        return {f"{split}/{name}": estimate for name, estimate in named.items()}

    def sentences(self, images: str) -> list[str]:
        """Return what was measured in words; `images` names them, such as `test images`."""
        said = [_about_sets(each, images) for each in self.sets]
        if self.chosen.covered is not None:
            said.append(self.rules.on_coverage)
        if self.groups and self.chosen.covered is not None:
            said.append(
                f"the images form {self.groups:,} groups: the coverage is that of an image of "
                "a new group, each group with equal weight; the intervals of the sets are by "
                "groups; those of the warnings, which take images as independent, are too narrow"
            )
        return said + [_about_warning(each, images) for each in self.warnings]


@dataclass(frozen=True)
class PredictedImages:
    """The images of a table of predictions, and features of some of them.

    Attributes:
        images: of the store.
        rows: row in the store of each row of the table.
        features: features (D) by row of the table.
    """

    images: StoredImages
    rows: Array
    features: Mapping[int, Array]

    def quality(self, positions: Array) -> ImageQuality:
        """Return the measures of at most 2,000 of these images, evenly spaced."""
        chosen = positions[_spaced(len(positions))]
        return qualities(self.images[int(self.rows[place])] for place in chosen)

    def of(
        self, predictions: Predictions, reference: ReferenceFeatures | None, split: str = "test"
    ) -> MeasuredImages:
        """Return the measures of some predictions' images.

        Args:
            predictions: of them.
            reference: that the distance is measured to; None if there is none.
            split: that it comes from; that of these images tells nothing about new ones.
        """
        if reference is not None and split == "test":
            return MeasuredImages(self.quality(predictions.positions), None, SAME_IMAGES)
        known = [place for place in predictions.positions.tolist() if place in self.features]
        distances = None
        if reference is not None and known:
            features_ND = np.stack([self.features[place] for place in known])
            distances = reference.neighbours.distances(features_ND)
        return MeasuredImages(self.quality(predictions.positions), distances)


@dataclass(frozen=True)
class MeasuredImages:
    """Measures of some of the images of a report.

    Attributes:
        quality: light and sharpness of at most 2,000.
        distances: to the reference features; None if there are none.
        why_no_distances: why, if so.
    """

    quality: ImageQuality
    distances: Array | None
    why_no_distances: str = NO_FEATURES


def qualities(images: Any) -> ImageQuality:
    """Return the measures of images, uint8 (H, W, C), as arrays."""
    measured = [quality_of(np.asarray(image)) for image in images]
    columns = np.array(measured, np.float64).reshape(-1, len(ImageQuality._fields)).T
    return ImageQuality(*columns)


def checked_answers(
    rules: AnswerRules,
    predictions: Predictions,
    measured: MeasuredImages,
    config: EvaluationConfig,
) -> AnswersReport:
    """Return how often sets hold the true class and how many images are warned of.

    Args:
        rules: of the package.
        predictions: of images that the rules were not fitted on.
        measured: measures of the same images, or of some of them.
        config: what counts as enough images of a class.
    """
    groups = groups_of(predictions.table)
    return AnswersReport(
        rules=rules,
        sets=tuple(_checked_set(each, predictions, config) for each in rules.thresholds),
        warnings=tuple(_checked_warnings(rules, predictions, measured)),
        groups=0 if groups is None else len(set(groups)),
    )


def save_reference(reference: ReferenceFeatures, file: Path) -> None:
    """Write the reference features as a package has them."""
    with open_replacing(file) as opened:
        np.savez(
            opened,
            allow_pickle=False,
            reference=reference.features_MD,
            nearest=np.array(reference.nearest),
        )


def _checked_set(
    threshold: SetThreshold, predictions: Predictions, config: EvaluationConfig
) -> SetCheck:
    if threshold.least_probability is None:
        return SetCheck(coverage=threshold.coverage, covered=None, unknown=threshold.unknown)
    labels_N, groups = predictions.labels, image_groups(predictions.table)
    least = np.array(threshold.by_class or threshold.least_probability) * _SLACK
    inside_NK = set_members(predictions.probabilities_NK, least)
    held_N, sizes_N = inside_NK[np.arange(len(labels_N)), labels_N], inside_NK.sum(axis=1)
    return SetCheck(
        coverage=threshold.coverage,
        covered=share(held_N, groups),
        mean_size=float(sizes_N.mean()),
        single=share(sizes_N == 1, groups),
        by_class=_by_class(predictions, held_N, config.small_sample, groups),
        each_class=bool(threshold.by_class),
    )


def _by_class(
    predictions: Predictions, held_N: Array, fewest: int, groups: ImageGroups | None
) -> tuple[ClassCoverage, ...]:
    names = dict(zip(predictions.labels.tolist(), predictions.table["label"], strict=True))
    classes = []
    for label in sorted(names):
        own = np.flatnonzero(predictions.labels == label)
        if len(own) >= fewest:
            covered = share_of_some(held_N, own, groups)
            classes.append(ClassCoverage(name=str(names[label]), covered=covered))
    return tuple(sorted(classes, key=lambda each: each.covered.value))


def _checked_warnings(
    rules: AnswerRules, predictions: Predictions, measured: MeasuredImages
) -> list[WarningCheck]:
    fault = faults(measured.quality, QualityLimits(rules.dark, rules.blurred))
    table, limits = predictions.table, {BLANK: 0.0, DARK: rules.dark, BLURRED: rules.blurred}
    checks = [
        _share(kind, [each == kind for each in fault], rules)
        if limit is not None
        else WarningCheck(kind=kind, warned=None, unknown=rules.unknown.get(kind, ""))
        for kind, limit in limits.items()
    ]
    sides_N = np.minimum(table["width"].to_numpy(), table["height"].to_numpy())
    for kind, limit, warned in (
        (TOO_SMALL, rules.least_side, sides_N < (rules.least_side or 0)),
        (FAR, rules.far, None if measured.distances is None or rules.far is None
         else measured.distances > rules.far),
    ):  # fmt: skip
        if limit is None:
            checks.append(WarningCheck(kind=kind, warned=None, unknown=rules.unknown.get(kind, "")))
        elif warned is None:
            why, promised = measured.why_no_distances, rules.false_alarms
            checks.append(WarningCheck(kind=kind, warned=None, promised=promised, unknown=why))
        else:
            checks.append(_share(kind, warned.tolist(), rules))
    return checks


def _share(kind: str, warned: Sequence[bool], rules: AnswerRules) -> WarningCheck:
    promised = rules.false_alarms if kind == FAR else None
    return WarningCheck(
        kind=kind, warned=proportion(sum(map(bool, warned)), len(warned)), promised=promised
    )


def _spaced(count: int) -> Array:
    return np.unique(np.linspace(0, count - 1, min(count, _MOST_MEASURED)).astype(np.int64))


def _about_sets(check: SetCheck, images: str) -> str:
    nominal = f"{check.coverage:.4g}"
    if check.covered is None or check.single is None:
        return f"sets with a coverage of {nominal} are not known: {check.unknown}"
    own = ", for each class by its own threshold" if check.each_class else ""
    classes = "class" if check.mean_size == 1 else "classes"
    broken = ", less than nominal" if check.is_broken else ""
    return (
        f"sets with a nominal coverage of {nominal}{own} hold the true class of "
        f"{_words(check.covered, images)}{broken}; they hold {check.mean_size:.2f} {classes} on "
        f"average, and {check.single.value:.1%} of them a single one"
    )


def _about_warning(check: WarningCheck, images: str) -> str:
    if check.warned is None:
        return f"the warning '{check.kind}' is {check.without_share}"
    chosen = "" if check.promised is None else f", where {check.promised:.1%} was chosen"
    return f"the warning '{check.kind}' is given to {_words(check.warned, images)}{chosen}"


def _words(share: MetricEstimate, images: str) -> str:
    return f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%}) of {share.n:,} {images}"

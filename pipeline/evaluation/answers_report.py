"""The rules of a package's answers: thresholds of sets and limits of warnings, fitted and checked.

They are fitted on held-out images, and checked on labelled ones of a report: how often sets hold
the true class, and images get warnings.

The distance to the features of seen images needs a reference that the threshold's images are no
part of. So the held-out images are divided: a random half is the reference, the other half gives
the threshold, and both guarantees are exact (`patchline.pipeline.evaluation.metrics.conformal`). If
the final model was trained on the validation images, other models predict them, and the coverage of
sets is not guaranteed. Nor are its features of them those of new images; the distance then comes
from the test images, whose labels play no part in it.

Shapes: N held-out or reported images, K classes, D features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from patchline.pipeline.data.reading.image_quality import (
    BLANK,
    BLURRED,
    DARK,
    ImageQuality,
    QualityLimits,
    faults,
    limits_among,
    quality_of,
)
from patchline.pipeline.evaluation.config import SMALL_SAMPLE, EvaluationConfig
from patchline.pipeline.evaluation.metrics.conformal import (
    conformal_threshold,
    fewest_for,
    least_probability,
    set_members,
)
from patchline.pipeline.evaluation.metrics.feature_distance import Neighbours
from patchline.pipeline.evaluation.metrics.intervals import (
    ImageGroups,
    MetricEstimate,
    share,
    shares,
)
from patchline.pipeline.evaluation.predictions import Predictions, groups_of
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import AnswerRules, SetThreshold
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.workspace.files.atomic_files import open_replacing
from patchline.pipeline.workspace.files.stored_images import StoredImages

Array = np.ndarray[Any, Any]
REFERENCE_FILE = "reference_features.npz"
"""In the folder of the report; packages have it beside `model.json`."""
TOO_SMALL, FAR = "too_small", "far"
NO_FEATURES = "no features of these images are known"
SAME_IMAGES = "the limit comes from these images, since the model was trained on all others"
COVERAGES = (0.9, 0.95, 0.99)
"""Coverages that every package has thresholds for, if the images suffice."""
_FEWEST_OF_CLASS = 100
"""Held-out images of every class from which each class has its own threshold."""
_NEAREST = 10
_MOST_REFERENCES = 1000
_SIDE_PART, _SMALLEST_SHARE = 0.5, 0.01
_MOST_MEASURED = 2000
_SLACK = 1 - 1e-5


class ClassCoverage(FrozenModel):
    """How often the sets of a class's images hold that class."""

    name: str
    covered: MetricEstimate


class SetCheck(FrozenModel):
    """Prediction sets of one nominal coverage, on images with labels."""

    coverage: float
    """Nominal coverage, as a probability."""
    covered: MetricEstimate | None
    """Share of the images whose set holds the true class; None if there are no sets."""
    mean_size: float | None = None
    """Mean number of classes in a set."""
    single: MetricEstimate | None = None
    """Share of the sets that hold a single class."""
    by_class: tuple[ClassCoverage, ...] = ()
    """Coverage of each class with enough images, the worst first."""
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
    """Share of the images that get the warning; None if it is not known, or if these images cannot
    tell how often it is given."""
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
    """Checks of the prediction sets, by rising coverage."""
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
        text = render_markdown("answers.txt.j2", __package__, answers=self, images=images)
        return text.splitlines()


@dataclass(frozen=True)
class PredictedImages:
    """The images of a table of predictions, and features of some of them.

    Attributes:
        images: the images of the store.
        rows: row in the store of each row of the table.
        features: features (D) by row of the table.
    """

    images: StoredImages
    rows: Array
    features: Mapping[int, Array]

    def quality(self, positions: Array) -> ImageQuality:
        """Return the measures of at most 2,000 of these images, evenly spaced."""
        last, count = len(positions) - 1, min(len(positions), _MOST_MEASURED)
        chosen = positions[np.unique(np.linspace(0, last, count).astype(np.int64))]
        return qualities(self.images[int(self.rows[place])] for place in chosen)

    def of(
        self, predictions: Predictions, reference: ReferenceFeatures | None, split: str = "test"
    ) -> MeasuredImages:
        """Return the measures of some predictions' images.

        Args:
            predictions: the predictions whose images are measured.
            reference: the reference features that distances are measured to; None if there are
                none.
            split: the split that the reference comes from; if that is the test split, the images
                are the reference themselves, and no distances are measured.
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
        quality: light and sharpness of at most 2,000 of the images.
        distances: distances to the reference features; None if there are none.
        why_no_distances: the reason why there are none, if so.
    """

    quality: ImageQuality
    distances: Array | None
    why_no_distances: str = NO_FEATURES


def qualities(images: Any) -> ImageQuality:
    """Return the measures of images, uint8 (H, W, C), as arrays."""
    measured = [quality_of(np.asarray(image)) for image in images]
    columns = np.array(measured, np.float64).reshape(-1, len(ImageQuality._fields)).T
    return ImageQuality(*columns)


def check_answers(
    rules: AnswerRules,
    predictions: Predictions,
    measured: MeasuredImages,
) -> AnswersReport:
    """Return how often sets hold the true class and how many images are warned of.

    Args:
        rules: the rules of the package.
        predictions: predictions for images that the rules were not fitted on.
        measured: measures of the same images, or of some of them.
    """
    groups = groups_of(predictions.table)
    return AnswersReport(
        rules=rules,
        sets=tuple(_check_set(each, predictions) for each in rules.thresholds),
        warnings=tuple(_check_warnings(rules, predictions, measured)),
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


def _check_set(threshold: SetThreshold, predictions: Predictions) -> SetCheck:
    if threshold.least_probability is None:
        return SetCheck(coverage=threshold.coverage, covered=None, unknown=threshold.unknown)
    labels_N, groups = predictions.labels, predictions.groups
    least = np.array(threshold.by_class or threshold.least_probability) * _SLACK
    inside_NK = set_members(predictions.probabilities_NK, least)
    held_N, sizes_N = inside_NK[np.arange(len(labels_N)), labels_N], inside_NK.sum(axis=1)
    return SetCheck(
        coverage=threshold.coverage,
        covered=share(held_N, groups),
        mean_size=float(sizes_N.mean()),
        single=share(sizes_N == 1, groups),
        by_class=_by_class(predictions, held_N, groups),
        each_class=bool(threshold.by_class),
    )


def _by_class(
    predictions: Predictions, held_N: Array, groups: ImageGroups | None
) -> tuple[ClassCoverage, ...]:
    names = dict(zip(predictions.labels.tolist(), predictions.table["label"], strict=True))
    classes = []
    for label in sorted(names):
        own = np.flatnonzero(predictions.labels == label)
        if len(own) >= SMALL_SAMPLE:
            [covered] = shares([held_N[own]], [own], groups)
            classes.append(ClassCoverage(name=str(names[label]), covered=covered))
    return tuple(sorted(classes, key=lambda each: each.covered.value))


def _check_warnings(
    rules: AnswerRules, predictions: Predictions, measured: MeasuredImages
) -> Iterator[WarningCheck]:
    fault = np.array(faults(measured.quality, QualityLimits(rules.dark, rules.blurred)), object)
    table, distances_N = predictions.table, measured.distances
    sides_N = np.minimum(table["width"].to_numpy(), table["height"].to_numpy())
    limits: dict[str, tuple[float | None, Array | None]] = {
        BLANK: (0.0, fault == BLANK),
        DARK: (rules.dark, fault == DARK),
        BLURRED: (rules.blurred, fault == BLURRED),
        TOO_SMALL: (rules.least_side, sides_N < (rules.least_side or 0)),
        FAR: (rules.far, None if distances_N is None else distances_N > (rules.far or 0)),
    }
    for kind, (limit, warned_N) in limits.items():
        if limit is None:
            yield WarningCheck(kind=kind, warned=None, unknown=rules.unknown.get(kind, ""))
            continue
        yield WarningCheck(
            kind=kind,
            warned=None if warned_N is None else share(warned_N, None),
            promised=rules.false_alarms if kind == FAR else None,
            unknown=measured.why_no_distances if warned_N is None else "",
        )


@dataclass(frozen=True)
class ReferenceFeatures:
    """Features of held-out images that the distance of others is measured to.

    Attributes:
        features_MD: features of the reference images (M, D), float32.
        nearest: k, counted from 1: distances are those to the k-th nearest neighbour.
    """

    features_MD: Array
    nearest: int

    @property
    def neighbours(self) -> Neighbours:
        """Measures distances to them."""
        return Neighbours(self.features_MD, self.nearest)


@dataclass(frozen=True)
class HeldOutImages:
    """What is known of the images that the rules are fitted on.

    Attributes:
        predictions: predictions by models that were not trained on these images.
        basis: description of these images, in words.
        why_none: why there are none, if so.
        unseen: images that the final model was not trained on: these, or those of the test split.
        features: features (D,) of some of `unseen`, computed by the final model, by row of the
            table of predictions.
        why_no_features: why there are none, if so.
        quality: measures of some of these images, as the network takes them.
        side: pixels on the shorter side of the network's input.
        seed: seed that draws the half that is the reference.
        has_sets: whether answers have prediction sets.
    """

    predictions: Predictions
    basis: str
    why_none: str
    unseen: Predictions
    features: Mapping[int, Array]
    why_no_features: str
    quality: ImageQuality
    side: int
    seed: int
    has_sets: bool = True

    @property
    def unseen_split(self) -> Literal["validation", "test"]:
        """The split of `unseen`."""
        return "validation" if self.unseen is self.predictions else "test"


def fit_rules(
    held: HeldOutImages, config: EvaluationConfig
) -> tuple[AnswerRules, ReferenceFeatures | None]:
    """Return the rules, and the reference for the distance if it is known.

    Label sets have warnings alone: prediction sets are for one label.
    """
    groups_N = groups_of(held.predictions.table)
    unknown: dict[str, str] = {}
    limits = limits_among(held.quality)
    images = len(held.predictions.table)
    if limits.dark is None:
        unknown["dark"] = "more than a fifth of the validation images are dark themselves"
    if limits.blurred is None:
        unknown["blurred"] = _too_few(images, "a usual sharpness", 10, "image")
    far, reference, why = _far(held, config.false_alarms)
    if far is None:
        unknown["far"] = why
    if not images:
        unknown |= dict.fromkeys(("dark", "blurred", "too_small"), held.why_none)
    coverages = sorted({*COVERAGES, config.coverage})
    rules = AnswerRules(
        coverage=config.coverage,
        thresholds=tuple(_threshold(held, groups_N, each) for each in coverages)
        if held.has_sets
        else (),
        images=images,
        groups=0 if groups_N is None else len(set(groups_N)),
        basis=held.basis,
        false_alarms=config.false_alarms,
        dark=limits.dark if images else None,
        blurred=limits.blurred,
        least_side=_least_side(held),
        far=far,
        far_split=held.unseen_split,
        unknown=unknown,
    )
    return rules, reference


def _threshold(
    held: HeldOutImages, groups_N: Sequence[str] | None, coverage: float
) -> SetThreshold:
    labels_N, probabilities_NK = held.predictions.labels, held.predictions.probabilities_NK
    if held.why_none:
        return SetThreshold(coverage=coverage, least_probability=None, unknown=held.why_none)
    own_N = probabilities_NK[np.arange(len(labels_N)), labels_N]
    least = least_probability(own_N, coverage, groups_N)
    if least is None:
        unit = "image" if groups_N is None else "group"
        count = len(own_N) if groups_N is None else len(set(groups_N))
        why = _too_few(count, f"a coverage of {coverage:g}", fewest_for(coverage), unit)
        return SetThreshold(coverage=coverage, least_probability=None, unknown=why)
    by_class = _threshold_by_class(own_N, labels_N, probabilities_NK.shape[1], groups_N, coverage)
    return SetThreshold(coverage=coverage, least_probability=least, by_class=by_class)


def _threshold_by_class(
    own_N: Array,
    labels_N: Array,
    num_classes: int,
    groups_N: Sequence[str] | None,
    coverage: float,
) -> tuple[float, ...]:
    """Return a threshold for each class; none unless every class has enough images, or groups."""
    fewest, thresholds = max(_FEWEST_OF_CLASS, fewest_for(coverage)), []
    if len(own_N) < fewest * num_classes:
        return ()
    for label in range(num_classes):
        of_class = np.flatnonzero(labels_N == label)
        groups = None if groups_N is None else [groups_N[int(row)] for row in of_class]
        if (len(of_class) if groups is None else len(set(groups))) < fewest:
            return ()
        least = least_probability(own_N[of_class], coverage, groups)
        if least is None:
            return ()
        thresholds.append(least)
    return tuple(thresholds)


def _far(
    held: HeldOutImages, false_alarms: float
) -> tuple[float | None, ReferenceFeatures | None, str]:
    """Return the threshold of the distance, the reference, and why they are not known."""
    if held.why_no_features:
        return None, None, held.why_no_features
    groups_N = groups_of(held.unseen.table)
    place = {int(row): place for place, row in enumerate(held.unseen.positions)}
    rows = sorted(row for row in held.features if row in place)
    units = [str(row) if groups_N is None else groups_N[place[row]] for row in rows]
    names = sorted(set(units))
    generator = np.random.default_rng(held.seed)
    drawn = generator.permutation(len(names))
    into_reference = {names[each] for each in drawn[: len(names) // 2]}
    reference = [row for row, unit in zip(rows, units, strict=True) if unit in into_reference]
    others = [(row, unit) for row, unit in zip(rows, units, strict=True)
              if unit not in into_reference]  # fmt: skip
    level, few = 1 - false_alarms, len(names) - len(names) // 2
    fewest = fewest_for(level)
    if few < fewest or not reference:
        unit = "image" if groups_N is None else "group"
        needed = max(2 * fewest - 1, 2)
        what, split = f"{false_alarms:.0%} false alarms", held.unseen_split
        return None, None, _too_few(len(names), what, needed, unit, split)
    kept = [reference[each] for each in generator.permutation(len(reference))[:_MOST_REFERENCES]]
    known = ReferenceFeatures(
        np.stack([held.features[row] for row in kept]).astype(np.float32),
        max(1, min(_NEAREST, len(kept) // 10)),
    )
    distances_N = known.neighbours.distances(np.stack([held.features[row] for row, _ in others]))
    threshold = conformal_threshold(
        distances_N, level, None if groups_N is None else [unit for _, unit in others]
    )
    return threshold, known, ""


def _least_side(held: HeldOutImages) -> float | None:
    """Return half of the network's side, or of the smallest held-out images' if that is less."""
    table = held.predictions.table
    if not len(table):
        return None
    sides_N = np.minimum(table["width"].to_numpy(), table["height"].to_numpy())
    return _SIDE_PART * min(held.side, float(np.quantile(sides_N, _SMALLEST_SHARE)))


def _too_few(count: int, what: str, fewest: int, unit: str, split: str = "validation") -> str:
    units = f"only {count:,} {split} {unit}{'' if count == 1 else 's'}"
    return f"{units}; {what} needs at least {fewest:,}"

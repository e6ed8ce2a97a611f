"""Fit the rules of a package on held-out images: thresholds of sets, and limits of warnings.

The distance to the features of seen images needs a reference that the threshold's images are no
part of. So the held-out images are divided: a random half is the reference, the other half gives
the threshold, and both guarantees are exact (`patchline.pipeline.evaluation.metrics.conformal`). If
the final model was trained on the validation images, other models predict them, and the coverage of
sets is not guaranteed. Nor are its features of them those of new images; the distance then comes
from the test images, whose labels play no part in it.

Shapes: N held-out images, K classes, D features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from patchline.pipeline.data.reading.image_quality import ImageQuality, limits_among
from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.evaluation.metrics.conformal import (
    conformal_threshold,
    fewest_for,
    least_probability,
)
from patchline.pipeline.evaluation.metrics.feature_distance import Neighbours
from patchline.pipeline.evaluation.predictions import Predictions, groups_of
from patchline.pipeline.models.model_description import AnswerRules, SetThreshold

Array = np.ndarray[Any, Any]
COVERAGES = (0.9, 0.95, 0.99)
"""Coverages that every package has thresholds for, if the images suffice."""
_FEWEST_OF_CLASS = 100
"""Held-out images of every class from which each class has its own threshold."""
_NEAREST = 10
_MOST_REFERENCES = 1000
_SIDE_PART, _SMALLEST_SHARE = 0.5, 0.01


@dataclass(frozen=True)
class ReferenceFeatures:
    """Features of held-out images that the distance of others is measured to.

    Attributes:
        features_MD: float32.
        nearest: which neighbour counts.
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
        predictions: of models that were not trained on them.
        basis: which images these are, in words.
        why_none: why there are none, if so.
        unseen: images that the final model was not trained on: these, or those of the test split.
        features: of some of `unseen`, by the final model: row of the table of predictions to (D,)
            features.
        why_no_features: why there are none, if so.
        quality: measures of some of them, as the network takes them.
        side: pixels on the shorter side of the network's input.
        seed: draws the half that is the reference.
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


def fitted_rules(
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
        thresholds=tuple(_threshold(held, held.predictions, groups_N, each) for each in coverages)
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
    held: HeldOutImages,
    predictions: Predictions,
    groups_N: Sequence[str] | None,
    coverage: float,
) -> SetThreshold:
    labels_N, probabilities_NK = predictions.labels, predictions.probabilities_NK
    if held.why_none:
        return SetThreshold(coverage=coverage, least_probability=None, unknown=held.why_none)
    own_N = probabilities_NK[np.arange(len(labels_N)), labels_N]
    least = least_probability(own_N, coverage, groups_N)
    if least is None:
        unit = "image" if groups_N is None else "group"
        count = len(own_N) if groups_N is None else len(set(groups_N))
        why = _too_few(count, f"a coverage of {coverage:g}", fewest_for(coverage), unit)
        return SetThreshold(coverage=coverage, least_probability=None, unknown=why)
    by_class = _by_class(own_N, labels_N, probabilities_NK.shape[1], groups_N, coverage)
    return SetThreshold(coverage=coverage, least_probability=least, by_class=by_class)


def _by_class(
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

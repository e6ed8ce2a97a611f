"""Compare two models on the same test images: the paired difference, by class and by image.

Shapes: N images, K classes; both models have the same classes in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from patchline.pipeline.data.labels.label_sets import SINGLE_LABEL, LabelWords, by_task
from patchline.pipeline.data.manifests.same_images import content_numbers, unite
from patchline.pipeline.data.splits import random_draws
from patchline.pipeline.evaluation.metrics.intervals import (
    ImageGroups,
    MetricEstimate,
    rows_of_classes,
    share,
    shares,
)
from patchline.pipeline.evaluation.metrics.paired_test import (
    PairedDifference,
    compute_paired_difference,
    difference,
)
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.provenance import (
    CONTENT,
    UNKNOWN,
    ProvenanceSummary,
    SeenImages,
    describe_unused,
)
from patchline.pipeline.terminal_words import counted

if TYPE_CHECKING:
    import pandas as pd


_SIGNIFICANCE = 0.05
DIFFERENCE = "difference, percentage points"


class PairedValues(NamedTuple):
    """One metric of two models on the same images, and its paired test."""

    champion: float
    challenger: float
    difference: MetricEstimate
    """The challenger's minus the champion's, with its 95% interval."""
    p_value: float
    """Two-sided p-value."""
    intervals: tuple[str, ...] = ("", "")
    """What stands behind both values, if their own intervals are known."""

    @property
    def meaning(self) -> str:
        """What the paired test says, in words."""
        if not self.difference.value:
            return "neither is better"
        if self.p_value < _SIGNIFICANCE:
            return "the difference is significant"
        return "the difference may be due to chance"


class ComparedImages(FrozenModel):
    """How many images are compared, and how many of these are independent."""

    images: int
    groups: int | None = None
    """Number of groups that the images form, such as patients; an image without a group is one of
    its own. None if no two images are of one group."""

    @property
    def units(self) -> int:
        """The number of independent units: groups if there are any, otherwise images."""
        return self.images if self.groups is None else self.groups

    @property
    def counted_images(self) -> str:
        """The number of images, and of the groups that they form: `200 images in 10 groups`."""
        images = counted(self.images, "image")
        return images if self.groups is None else f"{images} in {counted(self.groups, 'group')}"


class ComparedModels(ComparedImages, ABC):
    """A champion, a challenger, and the images that they are compared on."""

    METRIC: ClassVar[str]
    """Name of the metric by which the models are compared."""
    ON: ClassVar[str]
    """What stands before the images in a sentence on the paired test."""
    LOSES: ClassVar[str]
    """The metric of a class, or label, whose losses are shown."""
    WORDS: ClassVar[LabelWords]
    """Words for what has this metric: a class, or a label."""
    COLUMNS: ClassVar[tuple[str, ...]]
    """Titles of the columns that `ClassChange.cells` fills."""
    TEMPLATE: ClassVar[str]
    """File name of the page's template."""

    champion: str
    challenger: str
    champion_provenance: ProvenanceSummary = UNKNOWN
    """Whether all images that the champion has seen are recorded."""
    challenger_provenance: ProvenanceSummary = UNKNOWN
    """Whether all images that the challenger has seen are recorded."""
    left_out: dict[str, int]
    """Number of test images left out, by reason."""

    @property
    @abstractmethod
    def pairs(self) -> dict[str, PairedValues]:
        """The metrics that are compared, by their titles; the first is the main one."""

    @property
    def main(self) -> PairedValues:
        """The metric by which they are compared."""
        return next(iter(self.pairs.values()))

    def said(self, title: str) -> str:
        """Return one of the metrics before and now, in words."""
        pair = self.pairs[title]
        return f"{title} is {pair.challenger:.1%} now and was {pair.champion:.1%} before"

    @property
    def only_right(self) -> tuple[int, int] | None:
        """Images that only the champion, and only the challenger, gets right, if that counts."""
        return None

    @property
    @abstractmethod
    def changes(self) -> Sequence[ChangedMetric]:
        """The change of each class or label, in the order of the model's outputs."""

    @property
    def losses(self) -> list[ChangedMetric]:
        """Those that have images, largest loss first."""
        return sorted((each for each in self.changes if each.images), key=lambda each: each.order)

    @property
    def unused(self) -> str:
        """What can be said about the compared images: that neither model used them, or less."""
        return describe_unused(self.champion_provenance, self.challenger_provenance)

    @property
    def caveat(self) -> str:
        """What may be wrong because it is not known what the models have seen; may be empty."""
        of_champion, of_challenger = (
            provenance.caveat(name, "these images", f"its {self.METRIC}")
            for name, provenance in (
                (f"champion {self.champion}", self.champion_provenance),
                (f"challenger {self.challenger}", self.challenger_provenance),
            )
        )
        return "; ".join(each for each in (of_champion, of_challenger) if each)

    @property
    def test_unit(self) -> str:
        """What the paired test takes as a unit, as a clause; empty if that is an image."""
        return "" if self.groups is None else ", testing whole groups"

    @property
    def sentence(self) -> str:
        """The result in one sentence, with the difference and its interval."""
        if not self.images:
            return (
                f"No test image is left for comparing challenger {self.challenger} with champion "
                f"{self.champion}."
            )
        main, change = self.main, self.main.difference
        caveat = f" Note that {self.caveat}." if self.caveat else ""
        return (
            f"On {self.counted_images} {self.unused} by either, challenger "
            f"{self.challenger} has an {self.METRIC} of {100 * main.challenger:.1f}% and champion "
            f"{self.champion} {100 * main.champion:.1f}%: {points(change.value)} points "
            f"(95% confidence interval {points(change.low)} to {points(change.high)}; "
            f"{p_value_text(main.p_value)}{self.test_unit}); {main.meaning}.{caveat}"
        )


class ChangedMetric(ComparedImages):
    """The change in a metric of one class or label, and its images."""

    name: str
    champion: MetricEstimate | None
    """The champion's metric; None if it is unknown, such as for a label that all images have."""
    challenger: MetricEstimate | None

    @property
    def gain(self) -> float:
        """The challenger's minus the champion's; 0 if it is unknown."""
        if self.champion is None or self.challenger is None:
            return 0.0
        return self.challenger.value - self.champion.value

    @property
    def order(self) -> tuple[float, ...]:
        """Lowest for the largest loss."""
        return (self.gain,)

    @property
    def cells(self) -> tuple[str, ...]:
        """What a table has of it, beside its name and number of images."""
        return (points(self.gain),)


def points(share: float) -> str:
    """Return a difference of two shares in percentage points, with its sign: `+2.4`."""
    rounded = round(100 * share, 1)
    return f"{rounded:+.1f}" if rounded else "0.0"


def p_value_text(p_value: float) -> str:
    """Return `p = 0.034`, or `p < 0.001`."""
    return f"p = {p_value:.3f}" if p_value >= 0.001 else "p < 0.001"  # noqa: PLR2004 - three digits


Array = np.ndarray[Any, Any]

SEEN_BY_CHAMPION = "used for training or model selection of the champion"
SEEN_BY_CHALLENGER = "copy of an image used for training or model selection of the challenger"
SEEN_GROUP = "its group was used for training or model selection of either model"
CONTRADICTING = "copies of one image with different labels"
NOT_RANDOM = "not drawn at random to be labelled, but chosen"
COPY = "further copy of an image that is counted once"

_GALLERY_SIZE = 24


@dataclass(frozen=True)
class ComparableImages:
    """The images not used for training or model selection by either of two models."""

    images: pd.DataFrame
    """Rows of the challenger's manifest with their index there, one for each distinct image."""
    left_out: dict[str, int]
    """Number of test images left out, by the first reason that applies; zeros are omitted."""
    groups_N: Array
    """Number of each image's group, equal for images that either manifest puts in one group."""


class ClassChange(ChangedMetric):
    """The change in one class's recall."""

    champion: MetricEstimate
    """Recall of the champion."""
    challenger: MetricEstimate
    """Recall of the challenger."""
    difference: MetricEstimate
    """The challenger's recall minus the champion's, paired."""

    @property
    def gain(self) -> float:
        """The difference without its interval."""
        return self.difference.value

    @property
    def order(self) -> tuple[float, ...]:
        """By the gain, then the most images."""
        return self.gain, -self.images

    @property
    def cells(self) -> tuple[str, ...]:
        """The recall of both, and the difference."""
        before, now = f"{self.champion.value:.1%}", f"{self.challenger.value:.1%}"
        low, high = points(self.difference.low), points(self.difference.high)
        return before, now, f"{points(self.gain)} ({low} to {high})"


class FlippedImage(FrozenModel):
    """An image that one model gets right and the other wrong."""

    position: int
    """Index among the compared images, from 0."""
    path: str
    label: str
    champion_says: str
    champion_probability: float
    challenger_says: str
    challenger_probability: float


class Comparison(ComparedModels):
    """The result of a comparison; differences are the challenger minus the champion."""

    METRIC = "accuracy"
    ON = "of"
    LOSES = "recall"
    WORDS = by_task(SINGLE_LABEL)
    COLUMNS = ("recall before", "recall now", DIFFERENCE)
    TEMPLATE = "comparison.html.j2"

    champion_accuracy: MetricEstimate
    challenger_accuracy: MetricEstimate
    paired: PairedDifference
    """a is the champion, b the challenger."""
    by_class: tuple[ClassChange, ...]
    """Every class, in the order of the model's outputs."""
    newly_right: tuple[FlippedImage, ...]
    """Images that only the challenger gets right, with the highest combined confidence."""
    newly_wrong: tuple[FlippedImage, ...]
    """Images that only the champion gets right, with the highest combined confidence."""

    @property
    def changes(self) -> tuple[ClassChange, ...]:
        """Of every class."""
        return self.by_class

    @property
    def pairs(self) -> dict[str, PairedValues]:
        """The accuracy of both."""
        before, now = self.champion_accuracy, self.challenger_accuracy
        values = PairedValues(
            before.value,
            now.value,
            self.paired.difference,
            self.paired.p_value,
            tuple(f" ({each.low:.1%} to {each.high:.1%})" for each in (before, now)),
        )
        return {self.METRIC: values}

    def said(self, _title: str) -> str:
        """Return how many images only one model gets right, in words."""
        return (
            f"{self.paired.only_b_right} are correct only now and {self.paired.only_a_right} were "
            "correct only before"
        )

    @property
    def only_right(self) -> tuple[int, int]:
        """Both numbers."""
        return self.paired.only_a_right, self.paired.only_b_right

    @property
    def both_right(self) -> int:
        """Number of images that both get right."""
        right = round(self.champion_accuracy.value * self.images)
        return right - self.paired.only_a_right

    @property
    def both_wrong(self) -> int:
        """Number of images that both get wrong."""
        one_right = self.paired.only_a_right + self.paired.only_b_right
        return self.images - self.both_right - one_right


def comparable_images(
    champion_manifest: pd.DataFrame,
    challenger_manifest: pd.DataFrame,
    champion_seen: SeenImages | None = None,
    challenger_seen: SeenImages | None = None,
) -> ComparableImages:
    """Return the challenger's test images not used for training or model selection by either model.

    Images are matched by their pixels, or by their file where a manifest lacks the digest of the
    pixels, so names, folders and formats may differ between the versions of the data. An image
    belongs to every group that either manifest gives it; a group counts as seen if any of its
    images was seen.

    Args:
        champion_manifest: manifest of the champion's run; without rows if the run is gone.
        challenger_manifest: manifest of the challenger's run.
        champion_seen: what the champion's weights and those before them have seen, as the package
            records it.
        challenger_seen: the same for the challenger.
    """
    import pandas as pd

    champions = champion_manifest[champion_manifest["status"] == "ok"]
    challengers = challenger_manifest[challenger_manifest["status"] == "ok"]
    of_champion, of_challenger = content_numbers(champions, challengers)
    both = pd.concat([champions, challengers], ignore_index=True)
    numbers = pd.concat([of_champion, of_challenger], ignore_index=True)
    recorded = [seen or SeenImages() for seen in (champion_seen, challenger_seen)]
    by_champion, by_challenger = (set(numbers[seen.contain(both, CONTENT)]) for seen in recorded)
    by_champion |= set(of_champion[_was_seen(champions)])
    by_challenger |= set(of_challenger[_was_seen(challengers)])

    groups = both["group"]
    grouped = groups != ""
    seen_groups = set(groups[grouped & numbers.isin(by_champion | by_challenger)])
    for seen in recorded:
        seen_groups |= set(groups[grouped & seen.contain(both, ["group"])])
    of_seen_group = set(numbers[grouped & groups.isin(seen_groups)])

    tests = challengers[challengers["split"] == "test"]
    content = of_challenger[tests.index]
    reasons = {
        SEEN_BY_CHAMPION: content.isin(by_champion),
        SEEN_BY_CHALLENGER: content.isin(by_challenger),
        SEEN_GROUP: content.isin(of_seen_group),
        CONTRADICTING: tests["label"].groupby(content).transform("nunique") > 1,
        NOT_RANDOM: random_draws.find_chosen(challengers)[tests.index],
        COPY: content.duplicated(),
    }
    remaining = pd.Series(data=True, index=tests.index)
    left_out = {}
    for reason, applies in reasons.items():
        count = int((remaining & applies).sum())
        if count:
            left_out[reason] = count
        remaining &= ~applies
    compared = content[remaining]
    groups_N = _common_groups(numbers, groups, compared)
    return ComparableImages(images=tests[remaining], left_out=left_out, groups_N=groups_N)


def _common_groups(
    numbers: pd.Series[int], groups: pd.Series[str], compared: pd.Series[int]
) -> Array:
    """Return the number of the group of each compared image.

    Args:
        numbers: the content of each row of both manifests.
        groups: its group; empty without one.
        compared: the contents of the compared images.
    """
    if compared.empty:
        return np.empty(0, np.int64)
    there = numbers.isin(compared)
    united_M = unite(numbers[there].astype(str), groups[there])
    group_of = dict(zip(numbers[there], united_M, strict=True))
    return np.array([group_of[number] for number in compared], np.int64)


def _was_seen(usable: pd.DataFrame) -> pd.Series[bool]:
    """Return which images were used for training or model selection."""
    return usable["split"].isin(["train", "validation"])


class ComparisonSubject(NamedTuple):
    """Two models, and what is known of the images on which they are compared."""

    champion: str
    """Name of the champion on the page, such as its version."""
    challenger: str
    """Name of the challenger on the page."""
    classes: tuple[str, ...]
    """Names of the K classes or labels of both models."""
    left_out: dict[str, int]
    """Number of test images left out, by reason."""
    groups_N: Sequence[Any] | Array | None = None
    """A value for each image, equal for images that are not independent, such as those of a
    patient; the test then takes whole groups."""
    provenance: tuple[ProvenanceSummary, ProvenanceSummary] = (UNKNOWN, UNKNOWN)
    """Whether all images that the champion and the challenger have seen are recorded."""

    def fields(self, images: int, groups: ImageGroups | None) -> dict[str, Any]:
        """Return the fields of `ComparedModels`."""
        return {
            "champion": self.champion,
            "challenger": self.challenger,
            "champion_provenance": self.provenance[0],
            "challenger_provenance": self.provenance[1],
            "images": images,
            "groups": groups.count if groups else None,
            "left_out": self.left_out,
        }


def compare(
    models: ComparisonSubject,
    paths: Sequence[str],
    labels_N: Array,
    champion_NK: Array,
    challenger_NK: Array,
) -> Comparison:
    """Compare two models on the same N images.

    With no images, the intervals span their whole range.

    Args:
        models: the two, and the images.
        paths: paths of the images.
        labels_N: the true classes.
        champion_NK: calibrated probabilities of the champion.
        challenger_NK: calibrated probabilities of the challenger.
    """
    classes = models.classes
    shape = (len(paths), len(classes))
    labels = np.asarray(labels_N).reshape(len(paths)).astype(np.int64)
    a, b = (_answers(array.reshape(shape), labels) for array in (champion_NK, challenger_NK))
    images = _Images(paths, labels, classes)
    groups = ImageGroups.of(models.groups_N)
    return Comparison(
        **models.fields(len(paths), groups),
        champion_accuracy=share(a.right_N, groups),
        challenger_accuracy=share(b.right_N, groups),
        paired=compute_paired_difference(a.right_N, b.right_N, groups),
        by_class=_class_changes(images, a, b, groups),
        newly_right=_flips(images, a, b, b.right_N & ~a.right_N),
        newly_wrong=_flips(images, a, b, a.right_N & ~b.right_N),
    )


class _Images(NamedTuple):
    """The images, as both models know them."""

    paths: Sequence[str]
    labels_N: Array
    classes: tuple[str, ...]


class _ModelPredictions(NamedTuple):
    """One model's predictions."""

    predicted_N: Array
    confidence_N: Array
    """Probability of the prediction."""
    right_N: Array


def _answers(probabilities_NK: Array, labels_N: Array) -> _ModelPredictions:
    predicted_N = probabilities_NK.argmax(axis=1)
    confidence_N = probabilities_NK.max(axis=1).astype(np.float64)
    return _ModelPredictions(predicted_N, confidence_N, predicted_N == labels_N)


def _flips(
    images: _Images, champion: _ModelPredictions, challenger: _ModelPredictions, flipped_N: Array
) -> tuple[FlippedImage, ...]:
    """Describe the flipped images with the highest combined confidence."""
    positions = np.flatnonzero(flipped_N)
    confidence = (champion.confidence_N + challenger.confidence_N)[positions]
    chosen = positions[np.argsort(-confidence, kind="stable")[:_GALLERY_SIZE]]
    return tuple(
        FlippedImage(
            position=int(i),
            path=images.paths[i],
            label=images.classes[images.labels_N[i]],
            champion_says=images.classes[champion.predicted_N[i]],
            champion_probability=float(champion.confidence_N[i]),
            challenger_says=images.classes[challenger.predicted_N[i]],
            challenger_probability=float(challenger.confidence_N[i]),
        )
        for i in chosen
    )


def _class_changes(
    images: _Images,
    champion: _ModelPredictions,
    challenger: _ModelPredictions,
    groups: ImageGroups | None,
) -> tuple[ClassChange, ...]:
    """Return the change of every class."""
    by_class = rows_of_classes(images.labels_N, len(images.classes))
    recalls = [
        shares([model.right_N[rows] for rows in by_class], by_class, groups)
        for model in (champion, challenger)
    ]
    changes = []
    for name, rows, before, now in zip(images.classes, by_class, *recalls, strict=True):
        own = groups.among(rows) if groups else None
        changes.append(
            ClassChange(
                name=name,
                images=len(rows),
                groups=own.count if own else None,
                champion=before,
                challenger=now,
                difference=difference(champion.right_N[rows], challenger.right_N[rows], own),
            )
        )
    return tuple(changes)

"""Two models on the same test images: how far apart they are, and on which images.

Shapes: N images, K classes; both models have the same classes in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipeline.data.same_images import content_numbers
from pipeline.metrics.intervals import MetricEstimate, proportion, proportions
from pipeline.metrics.paired_test import PairedDifference, difference, paired_difference
from pipeline.section import Section

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]

SEEN_BY_CHAMPION = "the champion was trained or chosen on the image"
SEEN_BY_CHALLENGER = "a copy of an image that the challenger was trained or chosen on"
SEEN_GROUP = "of a group that one of the two was trained or chosen on"
CONTRADICTING = "copies of one image with different labels"
COPY = "a further copy of an image that counts once"

_GALLERY_SIZE = 24
_CHANCE = 0.05


@dataclass(frozen=True)
class ComparableImages:
    """The images that neither of two models was trained or chosen on."""

    images: pd.DataFrame
    """Rows of the challenger's manifest under their index there, one for each content."""
    left_out: dict[str, int]
    """Test images that do not count, by the first reason that applies; no reason with none."""


class ClassChange(Section):
    """What the challenger does to one class."""

    name: str
    images: int
    champion: MetricEstimate
    """Recall of the champion."""
    challenger: MetricEstimate
    """Recall of the challenger."""
    difference: MetricEstimate
    """Recall of the challenger minus that of the champion, paired."""


class FlippedImage(Section):
    """An image that one of the models gets right and the other wrong."""

    position: int
    """Among the images that were compared, from 0."""
    path: str
    label: str
    champion_says: str
    champion_probability: float
    challenger_says: str
    challenger_probability: float


class Comparison(Section):
    """Everything that a comparison found; differences are the challenger minus the champion."""

    champion: str
    challenger: str
    images: int
    left_out: dict[str, int]
    """Test images that do not count, by reason."""
    champion_accuracy: MetricEstimate
    challenger_accuracy: MetricEstimate
    paired: PairedDifference
    """a is the champion, b the challenger."""
    by_class: tuple[ClassChange, ...]
    """Every class, in the order of the model's outputs."""
    newly_right: tuple[FlippedImage, ...]
    """Of the images that only the challenger gets right, those where both are surest."""
    newly_wrong: tuple[FlippedImage, ...]
    """Of the images that only the champion gets right, those where both are surest."""

    @property
    def both_right(self) -> int:
        """Images that both get right."""
        right = round(self.champion_accuracy.value * self.images)
        return right - self.paired.only_a_right

    @property
    def both_wrong(self) -> int:
        """Images that both get wrong."""
        one_right = self.paired.only_a_right + self.paired.only_b_right
        return self.images - self.both_right - one_right

    @property
    def sentence(self) -> str:
        """The outcome in one sentence, with its figures."""
        if not self.images:
            return (
                f"No test image is left to compare challenger {self.challenger} with champion "
                f"{self.champion} on."
            )
        difference = self.paired.difference
        images = "1 image" if self.images == 1 else f"{self.images} images"
        return (
            f"On {images} that neither was trained or chosen on, challenger {self.challenger} is "
            f"right on {100 * self.challenger_accuracy.value:.1f} % and champion {self.champion} "
            f"on {100 * self.champion_accuracy.value:.1f} %: {points(difference.value)} points "
            f"(95 % interval {points(difference.low)} to {points(difference.high)}; "
            f"{p_value_text(self.paired.p_value)}); {self._meaning}."
        )

    @property
    def _meaning(self) -> str:
        if not self.paired.difference.value:
            return "neither is better"
        if self.paired.p_value < _CHANCE:
            return "chance alone seldom makes such a difference"
        return "the difference may be chance"


def comparable_images(
    champion_manifest: pd.DataFrame, challenger_manifest: pd.DataFrame
) -> ComparableImages:
    """Return the challenger's test images that neither model was trained or chosen on.

    Images are known by their pixels, or by their file where a manifest does not know the pixels,
    so names, folders and formats may differ between the versions of the data. An image belongs to
    every group that either manifest gives it, and a group is seen as soon as one of its images is.
    """
    import pandas as pd

    champions = champion_manifest[champion_manifest["status"] == "ok"]
    challengers = challenger_manifest[challenger_manifest["status"] == "ok"]
    of_champion, of_challenger = content_numbers(champions, challengers)
    by_champion = set(of_champion[_was_seen(champions)])
    by_challenger = set(of_challenger[_was_seen(challengers)])

    numbers = pd.concat([of_champion, of_challenger], ignore_index=True)
    groups = pd.concat([champions["group"], challengers["group"]], ignore_index=True)
    grouped = groups != ""
    seen_groups = set(groups[grouped & numbers.isin(by_champion | by_challenger)])
    of_seen_group = set(numbers[grouped & groups.isin(seen_groups)])

    tests = challengers[challengers["split"] == "test"]
    content = of_challenger[tests.index]
    reasons = {
        SEEN_BY_CHAMPION: content.isin(by_champion),
        SEEN_BY_CHALLENGER: content.isin(by_challenger),
        SEEN_GROUP: content.isin(of_seen_group),
        CONTRADICTING: tests["label"].groupby(content).transform("nunique") > 1,
        COPY: content.duplicated(),
    }
    remaining = pd.Series(data=True, index=tests.index)
    left_out = {}
    for reason, applies in reasons.items():
        count = int((remaining & applies).sum())
        if count:
            left_out[reason] = count
        remaining &= ~applies
    return ComparableImages(images=tests[remaining], left_out=left_out)


def _was_seen(usable: pd.DataFrame) -> pd.Series[bool]:
    """Return which images a model of this data was trained or chosen on."""
    return usable["split"].isin(["train", "validation"])


def compare(
    *,
    champion: str,
    challenger: str,
    classes: tuple[str, ...],
    paths: Sequence[str],
    labels_N: Array,
    champion_NK: Array,
    challenger_NK: Array,
    left_out: dict[str, int],
) -> Comparison:
    """Compare two models on the same N images; with none, every interval is everything.

    Args:
        champion: what the champion is called, such as its version.
        challenger: the same of the challenger.
        classes: names of the K classes, of both models.
        paths: of the images.
        labels_N: the true classes.
        champion_NK: calibrated probabilities of the champion.
        challenger_NK: calibrated probabilities of the challenger.
        left_out: test images that do not count, by reason.
    """
    shape = (len(paths), len(classes))
    labels = np.asarray(labels_N).reshape(len(paths)).astype(np.int64)
    a, b = (_answers(array.reshape(shape), labels) for array in (champion_NK, challenger_NK))
    images = _Images(paths, labels, classes)
    class_changes = _class_changes(classes, labels, a.right_N, b.right_N)
    return Comparison(
        champion=champion,
        challenger=challenger,
        images=len(paths),
        left_out=left_out,
        champion_accuracy=proportion(int(a.right_N.sum()), len(paths)),
        challenger_accuracy=proportion(int(b.right_N.sum()), len(paths)),
        paired=paired_difference(a.right_N, b.right_N),
        by_class=class_changes,
        newly_right=_flips(images, a, b, b.right_N & ~a.right_N),
        newly_wrong=_flips(images, a, b, a.right_N & ~b.right_N),
    )


class _Images(NamedTuple):
    """The images, as both models know them."""

    paths: Sequence[str]
    labels_N: Array
    classes: tuple[str, ...]


class _Answers(NamedTuple):
    """What one model says about the images."""

    said_N: Array
    sure_N: Array
    """Probability of what it says."""
    right_N: Array


def _answers(probabilities_NK: Array, labels_N: Array) -> _Answers:
    said_N = probabilities_NK.argmax(axis=1)
    sure_N = probabilities_NK.max(axis=1).astype(np.float64)
    return _Answers(said_N, sure_N, said_N == labels_N)


def _flips(
    images: _Images, champion: _Answers, challenger: _Answers, flipped_N: Array
) -> tuple[FlippedImage, ...]:
    """Describe the flipped images about which the two models together are surest."""
    positions = np.flatnonzero(flipped_N)
    sure = (champion.sure_N + challenger.sure_N)[positions]
    surest = positions[np.argsort(-sure, kind="stable")[:_GALLERY_SIZE]]
    return tuple(
        FlippedImage(
            position=int(i),
            path=images.paths[i],
            label=images.classes[images.labels_N[i]],
            champion_says=images.classes[champion.said_N[i]],
            champion_probability=float(champion.sure_N[i]),
            challenger_says=images.classes[challenger.said_N[i]],
            challenger_probability=float(challenger.sure_N[i]),
        )
        for i in surest
    )


def _class_changes(
    classes: tuple[str, ...], labels_N: Array, a_right_N: Array, b_right_N: Array
) -> tuple[ClassChange, ...]:
    """Return the change of every class, given which images each model gets right."""
    images, a_right, b_right, only_a, only_b = (
        np.bincount(labels_N[chosen_N], minlength=len(classes))
        for chosen_N in (
            np.ones(len(labels_N), bool),
            a_right_N,
            b_right_N,
            a_right_N & ~b_right_N,
            b_right_N & ~a_right_N,
        )
    )
    shares = proportions(a_right, images), proportions(b_right, images)
    return tuple(
        ClassChange(
            name=name,
            images=int(images[k]),
            champion=champion,
            challenger=challenger,
            difference=difference(int(only_b[k]), int(only_a[k]), int(images[k])),
        )
        for k, (name, champion, challenger) in enumerate(zip(classes, *shares, strict=True))
    )


def points(share: float) -> str:
    """Return a difference of two shares in percentage points, with its sign: `+2.4`."""
    rounded = round(100 * share, 1)
    return f"{rounded:+.1f}" if rounded else "0.0"


def p_value_text(p_value: float) -> str:
    """Return `p = 0.034`, or `p < 0.001`."""
    return f"p = {p_value:.3f}" if p_value >= 0.001 else "p < 0.001"  # noqa: PLR2004 - three digits

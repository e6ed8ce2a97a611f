"""What turns a multi-label model's logits into labels: its calibration and its thresholds.

The calibration is a scale and a shift for each label.

Shapes: N images, K labels.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from patchline.pipeline.errors import RunError
from patchline.pipeline.evaluation.metrics.row_pieces import column_pieces
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import by_number, counted, few_names, visible

Array = np.ndarray[Any, Any]
FEWEST = 10
"""Images with a label, and images without it, that its calibration and its threshold need."""
SCALE_DEVIATION, SHIFT_DEVIATION = 0.35, 2.0
"""Of log scale and of the shift before any image is seen, normal around 0. The first is that of a
temperature; the second is wide, because a weight of the positives shifts all logits alike."""
_STEPS, _PRECISE = 60, 1e-9
_HALVINGS = 30
_LEAST = 1e-12


class LabelCalibration(FrozenModel):
    """The probability of label k is sigmoid(scale_k * logit_k + shift_k).

    No image's order within a label changes, as scales are positive.
    """

    scales: tuple[float, ...]
    """Scale of each label; 1 for a label that too few images have or lack."""
    shifts: tuple[float, ...]
    """Shift of each label; 0 for a label that too few images have or lack."""
    determined: tuple[bool, ...]
    """Whether the images of a label have told its scale and its shift."""
    positives: tuple[int, ...] = ()
    """Number of images with each label; empty if it is not recorded."""
    images: int = 0
    """Number of images that it was fitted on."""
    fewest: int = FEWEST
    """Images with a label, and images without it, below which it is not fitted."""
    off: str = Field(default="", exclude_if=operator.not_)
    """What the images of a report show against the probabilities; empty if nothing."""
    members: tuple[LabelCalibration, ...] = Field(default=(), exclude_if=operator.not_)
    """The fits of an ensemble's models, each on images that its model was not trained on; their
    average is not calibrated again."""

    @model_validator(mode="after")
    def _of_equal_length(self) -> Self:
        lengths = {len(self.scales), len(self.shifts), len(self.determined)}
        if len(lengths) != 1 or (self.positives and len(self.positives) not in lengths):
            raise ValueError("scales, shifts, determined and positives have one value for a label")
        if not all(scale > 0 for scale in self.scales):
            raise ValueError("scales are positive")
        return self

    @classmethod
    def none(cls, num_labels: int) -> Self:
        """Return the calibration that changes nothing, of images that are not there."""
        return cls(
            scales=(1.0,) * num_labels,
            shifts=(0.0,) * num_labels,
            determined=(False,) * num_labels,
            positives=(0,) * num_labels,
        )

    @classmethod
    def by_member(cls, members: tuple[LabelCalibration, ...]) -> Self:
        """Return the calibration of an ensemble, whose average has no scales of its own.

        Nothing is left to fit them on: each image has been used to train some of the models.
        """
        plain = cls.none(len(members[0].scales))
        return plain.model_copy(
            update={
                "determined": tuple(
                    map(all, zip(*(each.determined for each in members), strict=True))
                ),
                "positives": tuple(
                    map(sum, zip(*(each.positives for each in members), strict=True))
                ),
                "images": sum(each.images for each in members),
                "members": members,
            }
        )

    def scaling(self, _num_labels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return what each of the K logits is multiplied with, and what is then added to it."""
        return self.scales, self.shifts

    def logits(self, logits_NK: Array) -> Array:
        """Return calibrated logits (N, K) in float64, whose sigmoids are the probabilities."""
        scaled_NK: Array = logits_NK * np.array(self.scales) + np.array(self.shifts)
        return scaled_NK

    def probabilities(self, logits_NK: Array) -> Array:
        """Return calibrated probabilities (N, K) in float64."""
        return sigmoid(self.logits(logits_NK))

    def uncalibrated_probabilities(self, probabilities_NK: Array) -> Array:
        """Return the probabilities before calibration of calibrated ones (N, K), in float64."""
        from scipy.special import logit

        inside = np.clip(probabilities_NK.astype(np.float64), _LEAST, 1 - _LEAST)
        before_NK: Array = (logit(inside) - np.array(self.shifts)) / np.array(self.scales)
        return sigmoid(before_NK)

    @property
    def is_calibrated(self) -> bool:
        """Whether the images tell the calibration of every label, and none contradict it."""
        return self.is_determined and not self.off

    @property
    def is_determined(self) -> bool:
        """Whether the images tell the calibration of every label."""
        return all(self.determined)

    def uncalibrated(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the labels, of all K, that are not calibrated."""
        return tuple(
            label for label, known in zip(labels, self.determined, strict=True) if not known
        )

    def sentence(self, labels: Sequence[str] = ()) -> str:
        """Return what was calibrated, with its evidence, without a full stop.

        Args:
            labels: names of the K labels; without them, those that are not calibrated are counted.
        """
        return f"{self._sentence(labels)}{f'; but {self.off}' if self.off else ''}"

    def _sentence(self, labels: Sequence[str]) -> str:
        """Return what was calibrated."""
        images, total = counted(self.images, "validation image"), len(self.determined)
        lacking = total - sum(self.determined)
        if self.members:
            return self._of_members(labels)
        if not lacking:
            return f"a scale and a shift for each label, fitted on {images}"
        rest = _too_few(lacking, self.fewest, self.images)
        if lacking == total:
            return f"no label is calibrated: {rest}"
        others = listed(self.uncalibrated(labels)) if labels else f"{lacking:,} of them"
        return (
            f"a scale and a shift for {total - lacking:,} of {total:,} labels, fitted on {images}; "
            f"{others} {by_number(lacking, 'is', 'are')} not calibrated: {rest}"
        )

    def _of_members(self, labels: Sequence[str]) -> str:
        sizes = ", ".join(f"{each.images:,}" for each in self.members)
        how = (
            "each model of the ensemble has a scale and a shift for each label, fitted on the "
            f"images of its fold ({sizes})"
        )
        others = self.uncalibrated(labels) if labels else ()
        lacking = len(self.determined) - sum(self.determined)
        if not lacking:
            return how
        named = listed(others) if others else f"{lacking:,} of them"
        return (
            f"{how}, but {named}: fewer than {self.fewest} images of some fold have "
            f"{by_number(lacking, 'it', 'them')}, or lack {by_number(lacking, 'it', 'them')}"
        )


def _too_few(labels: int, fewest: int, images: int) -> str:
    """Return why so many labels are not fitted."""
    if not images:
        return "there is no validation image that the model was not trained on"
    it = by_number(labels, "it", "them")
    return f"fewer than {fewest} of {counted(images, 'validation image')} have {it}, or lack {it}"


def listed(labels: Sequence[str]) -> str:
    """Return the first few labels by name, and how many more there are."""
    return few_names(map(visible, labels))


def sigmoid(logits: Array) -> Array:
    """Return probabilities of logits, without overflow, in float64."""
    from scipy.special import expit

    probabilities: Array = expit(logits.astype(np.float64))
    return probabilities


def fit_label_calibration(logits_NK: Array, labels_NK: Array) -> LabelCalibration:
    """Fit each label's scale and shift on images that the model was not trained on.

    Platt's scaling (1999, Advances in Large Margin Classifiers) with priors in place of his
    smoothed targets: scale and shift maximise the posterior, whose prior is normal for the
    logarithm of the scale (standard deviation 0.35) and for the shift (2), both around 0. A label
    of fewer than `FEWEST` images, or that fewer lack, keeps scale 1 and shift 0.

    Args:
        logits_NK: logits of the model.
        labels_NK: 1 where an image has a label, else 0.

    Raises:
        RunError: if logits are not finite.
    """
    broken = int((~np.isfinite(logits_NK)).any(axis=1).sum())
    if broken:
        raise RunError(
            f"The model's outputs for {broken:,} of {len(logits_NK):,} validation images are not "
            "finite numbers, so they cannot be calibrated. Train with training.precision float32, "
            "or with a lower learning rate."
        )
    images, count = labels_NK.shape
    positives_K = labels_NK.sum(axis=0, dtype=np.int64)
    determined_K = enough(positives_K, images)
    scales_K, shifts_K = np.ones(count), np.zeros(count)
    for k, logits_N in column_pieces(logits_NK, np.flatnonzero(determined_K)):
        scales_K[k], shifts_K[k] = _platt(
            logits_N.astype(np.float64), labels_NK[:, k].astype(np.float64)
        )
    return LabelCalibration(
        scales=tuple(scales_K.tolist()),
        shifts=tuple(shifts_K.tolist()),
        determined=tuple(determined_K.tolist()),
        positives=tuple(positives_K.tolist()),
        images=images,
    )


def enough(positives_K: Array, images: int) -> Array:
    """Return whether each label has, and lacks, so many images that something can be fitted."""
    is_enough_K: Array = np.minimum(positives_K, images - positives_K) >= FEWEST
    return is_enough_K


def _platt(logits_N: Array, labels_N: Array) -> tuple[float, float]:
    """Return scale and shift of one label, by Fisher scoring with step halving."""
    log_scale, shift = 0.0, 0.0
    precision = np.array([SCALE_DEVIATION**-2, SHIFT_DEVIATION**-2])
    loss = _loss(logits_N, labels_N, log_scale, shift)
    for _ in range(_STEPS):
        scaled = np.exp(log_scale) * logits_N
        probability = sigmoid(scaled + shift)
        error, weight = probability - labels_N, probability * (1 - probability)
        gradient = np.array([error @ scaled, error.sum()])
        gradient += precision * [log_scale, shift]
        cross = float(weight @ scaled)
        information = np.array([[weight @ scaled**2, cross], [cross, weight.sum()]])
        step = np.linalg.solve(information + np.diag(precision), gradient)
        for _ in range(_HALVINGS):
            moved = log_scale - float(step[0]), shift - float(step[1])
            less = _loss(logits_N, labels_N, *moved)
            if less <= loss:
                break
            step = step / 2
        else:
            break
        (log_scale, shift), gain, loss = moved, loss - less, less
        if gain < _PRECISE and np.abs(step).max() < _PRECISE:
            break
    return float(np.exp(log_scale)), shift


def _loss(logits_N: Array, labels_N: Array, log_scale: float, shift: float) -> float:
    """Return the negative logarithm of the posterior, but for a constant."""
    scaled = np.exp(log_scale) * logits_N + shift
    likelihood = float((np.logaddexp(0, scaled) - labels_N * scaled).sum())
    return likelihood + (log_scale / SCALE_DEVIATION) ** 2 / 2 + (shift / SHIFT_DEVIATION) ** 2 / 2


NEUTRAL = 0.5
"""The threshold of a label that too few images determine."""


class LabelThresholds(FrozenModel):
    """An image has label k if its calibrated probability is `values[k]` or more."""

    values: tuple[float, ...]
    """Threshold of each label, between 0 and 1."""
    fitted: tuple[bool, ...]
    """Whether a label's threshold was fitted; otherwise it is 0.5."""
    fewest: int = FEWEST
    """Images with a label, and images without it, below which its threshold is 0.5."""
    images: int = 0
    """Number of images that they were fitted on."""
    basis: str = "highest F1 on the validation images"
    """What the fitted thresholds maximise."""

    @model_validator(mode="after")
    def _of_equal_length(self) -> Self:
        if len(self.values) != len(self.fitted):
            raise ValueError("values and fitted have one value for a label")
        if not all(0 <= value <= 1 for value in self.values):
            raise ValueError("thresholds lie between 0 and 1")
        return self

    @classmethod
    def neutral(cls, num_labels: int) -> Self:
        """Return 0.5 for each label, of images that are not there."""
        return cls(values=(NEUTRAL,) * num_labels, fitted=(False,) * num_labels)

    def predicted(self, probabilities_NK: Array) -> Array:
        """Return 1 where an image has a label, else 0 (N, K uint8)."""
        return (probabilities_NK >= np.array(self.values)).astype(np.uint8)

    def unfitted(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the labels, of all K, whose threshold is 0.5 because few images have them."""
        return tuple(label for label, is_fit in zip(labels, self.fitted, strict=True) if not is_fit)

    def sentence(self, labels: Sequence[str]) -> str:
        """Return how the thresholds were chosen, without a full stop.

        Args:
            labels: names of the K labels.
        """
        others = self.unfitted(labels)
        how = f"one for each label, by the {self.basis}"
        if not others:
            return f"{how} ({self.images:,})"
        rest = _too_few(len(others), self.fewest, self.images)
        if len(others) == len(labels):
            return f"{NEUTRAL} for every label: {rest}"
        return f"{how} ({self.images:,}); {NEUTRAL} for {listed(others)}: {rest}"


def fit_label_thresholds(probabilities_NK: Array, labels_NK: Array) -> LabelThresholds:
    """Choose each label's threshold by the highest F1 on images that the model did not learn from.

    A threshold lies halfway between two probabilities that occur, and of equally good ones it is
    the one closest to 0.5; so the last digit of a probability decides no image. A label of fewer
    than `FEWEST` images, or that fewer lack, keeps 0.5.

    Args:
        probabilities_NK: calibrated probabilities.
        labels_NK: 1 where an image has a label, else 0.
    """
    images, count = labels_NK.shape
    fitted_K = enough(labels_NK.sum(axis=0, dtype=np.int64), images)
    values_K = np.full(count, NEUTRAL)
    for k, probabilities_N in column_pieces(probabilities_NK, np.flatnonzero(fitted_K)):
        values_K[k] = _highest_f1(probabilities_N.astype(np.float64), labels_NK[:, k])
    return LabelThresholds(
        values=tuple(values_K.tolist()), fitted=tuple(fitted_K.tolist()), images=images
    )


def _highest_f1(probabilities_N: Array, labels_N: Array) -> float:
    order = np.argsort(-probabilities_N, kind="stable")
    sorted_N, has_label = probabilities_N[order], labels_N[order].astype(np.int64)
    last = np.append(np.flatnonzero(np.diff(sorted_N)), len(sorted_N) - 1)
    hits = np.cumsum(has_label)[last]
    f1 = 2 * hits / (last + 1 + hits[-1])
    halfway = (sorted_N[last] + np.append(sorted_N[last[:-1] + 1], 0.0)) / 2
    best = halfway[f1 == f1.max()]
    return float(best[np.abs(best - NEUTRAL).argmin()])


class LabelFit(NamedTuple):
    """The fields of a model's description that turn logits into labels."""

    label_calibration: LabelCalibration
    thresholds: LabelThresholds

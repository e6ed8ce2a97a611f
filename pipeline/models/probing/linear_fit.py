"""Fit a linear head on features, and choose the strength of its penalty on validation.

Shapes: N and M images, D features, K classes or labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from patchline.pipeline.data.labels.label_sets import strata
from patchline.pipeline.errors import RunError
from patchline.pipeline.evaluation.metrics.mean_average_precision import mean_average_precision
from patchline.pipeline.models.probing.few_images import FEWEST_VALIDATION
from patchline.pipeline.models.probing.logistic_regression import (
    LogisticProblem,
    OneVsRestProblem,
    Problem,
    Solution,
    suitable_threads,
)

Floats = np.ndarray[Any, np.dtype[np.float32]]
Labels = np.ndarray[Any, np.dtype[np.int64]]

REGULARIZATIONS = tuple(10 ** (half / 2) for half in range(-10, 7))
"""The values of C that are tried, from a strong penalty to a weak one."""
WITHOUT_CHOICE = 1.0
"""The value of C, as in scikit-learn, if there is no image to compare the values with."""
FOLDS = 5
_PATIENCE = 3
"""Values of C in a row without an improvement before the search ends."""
_IMPROVEMENT = 1e-4
"""By which share the loss has to decrease to be an improvement; less is chance."""


@dataclass(frozen=True)
class TriedFit:
    """The outcome of one value of C."""

    regularization: float
    training_loss: float
    """Weighted mean loss of all training images, without the penalty."""
    validation_loss: float
    """Mean loss of the images that were not fitted: validation images, held-out ones, or both."""
    validation_accuracy: float | None
    """The accuracy on the same images; None for sets of labels."""
    validation_map: float | None = None
    """Mean average precision of sets of labels, of the same images."""

    @property
    def cost(self) -> float:
        """What is smallest for the best fit: the loss; of sets of labels, 1 - mAP."""
        return self.validation_loss if self.validation_map is None else 1 - self.validation_map


@dataclass(frozen=True)
class FittedHead:
    """A linear layer for raw features, and how its penalty was chosen."""

    weight_KD: Floats
    bias_K: Floats
    regularization: float
    """C as in scikit-learn's LogisticRegression, on standardised features."""
    tried: tuple[TriedFit, ...]
    """The outcomes from a strong penalty to a weak one; empty if C was given, or there was no image
    to compare them with."""
    validation_images: int = 0
    """Number of validation images that C was chosen with."""
    held_out_images: int = 0
    """Number of training images that C was chosen with, each by a fit without its fold."""


def fit_head(
    features_ND: Floats,
    labels_N: Labels,
    validation_features: Floats,
    validation_labels: Labels,
    num_classes: int,
    *,
    units_N: Labels | None = None,
    class_weights_K: Floats | None = None,
    regularization: float | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> FittedHead:
    """Fit a head by multinomial logistic regression, with the best C on validation.

    The values of C are tried from a strong penalty to a weak one, each from the previous minimum.
    The smallest mean validation loss wins, and of equal ones the stronger penalty. The search ends
    after three values in a row that do not decrease the loss by 0.01 %.

    With sets of labels, each label has a logistic regression of its own, all with the same C, and
    the largest mean average precision (mAP) wins.

    With fewer than 50 validation images the training images are divided into 5 folds as well: each
    fold is predicted by a fit on the others, and its loss counts like that of validation images.
    The head itself is always fitted on all training images, and never on validation images. With
    one training image a class and no validation image C is 1.

    Args:
        features_ND: the features of the training images.
        labels_N: their class indices, where every class has an image; or sets of labels as 0 and 1
            (N, K).
        validation_features: the features of the validation images (M, D); M may be 0.
        validation_labels: the class indices of the validation images (M), or sets of labels (M, K).
        num_classes: K, the number of classes or labels.
        units_N: a number for each training image, the same where images belong together, such as
            those of one group; they are held out together. None if no two do.
        class_weights_K: weight of each class in the training loss, of sets where a label is
            present; None for equal weights.
        regularization: C, if it has been chosen already; validation images are not used then.
        on_progress: called with the number of tried values of C, and of all.

    Raises:
        RunError: if a feature is not a finite number.
    """
    weights_K = None if class_weights_K is None else torch.tensor(class_weights_K)
    with suitable_threads(np.size(features_ND) * num_classes):
        training = _finite(features_ND), _indices(labels_N)
        if regularization is not None:
            path = _Path.of(_problem(*training, num_classes, weights_K))
            return path.fitted_with(regularization)
        validation = _finite(validation_features), _indices(validation_labels)
        return _fit(training, validation, num_classes, weights_K, units_N, on_progress)


def _fit(
    training: tuple[torch.Tensor, torch.Tensor],
    validation_images: tuple[torch.Tensor, torch.Tensor],
    num_classes: int,
    weights_K: torch.Tensor | None,
    units_N: Labels | None,
    on_progress: Callable[[int, int], None] | None,
) -> FittedHead:
    features, labels = training
    problem = _problem(features, labels, num_classes, weights_K)
    validation = _Unseen(_Path.of(problem), *validation_images)
    held_out = []
    if len(validation) < FEWEST_VALIDATION:
        divided_N = strata(labels.numpy()) if _are_sets(labels) else labels.numpy()
        for part_rows in split_into_folds(divided_N, units_N):
            rows = torch.from_numpy(part_rows)
            fitted = torch.ones(len(labels), dtype=torch.bool)
            fitted[rows] = False
            part = _problem(features[fitted], labels[fitted], num_classes, weights_K)
            held_out.append(_Unseen(_Path.of(part), features[rows], labels[rows]))
    unseen = [each for each in (validation, *held_out) if len(each)]
    if not unseen:
        return validation.path.fitted_with(WITHOUT_CHOICE)
    best, tried = _search(validation.path, unseen, on_progress)
    weight_KD, bias_K = best
    return FittedHead(
        weight_KD.numpy(),
        bias_K.numpy(),
        min(tried, key=lambda fit: fit.cost).regularization,
        tuple(tried),
        len(validation),
        sum(len(each) for each in held_out),
    )


def _problem(
    features: torch.Tensor, labels: torch.Tensor, num_classes: int, weights_K: torch.Tensor | None
) -> LogisticProblem:
    if _are_sets(labels):
        return OneVsRestProblem.of(features, labels, weights_K)
    return Problem.of(features, labels, num_classes, weights_K)


def _are_sets(labels: torch.Tensor) -> bool:
    return labels.ndim == 2  # noqa: PLR2004 - images and labels


@dataclass
class _Path:
    """The minima of a problem for weaker and weaker penalties, each the start of the next."""

    problem: LogisticProblem
    solution: Solution
    """The latest minimum; at first, where the search starts."""

    @classmethod
    def of(cls, problem: LogisticProblem) -> _Path:
        return cls(problem, problem.start())

    def advance(self, regularization: float) -> None:
        """Find the minimum for the next C."""
        self.solution = self.problem.solve(regularization, self.solution)

    def fitted_with(self, regularization: float) -> FittedHead:
        """Return the head for a C that is not compared with others."""
        self.advance(regularization)
        weight_KD, bias_K = self.head()
        return FittedHead(weight_KD.numpy(), bias_K.numpy(), regularization, ())

    def head(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weight (K, D) and bias (K) for raw features, in float32."""
        weight_KD, bias_K = self.problem.for_raw_features(self.solution)
        return weight_KD.float(), bias_K.float()


@dataclass(frozen=True)
class _Unseen:
    """Images that the fits of a path have not seen."""

    path: _Path
    features_MD: torch.Tensor
    labels_M: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels_M)

    def loss_and_correct(self) -> tuple[float, int]:
        """Return the sum of the losses at the path's latest minimum, and the number of hits."""
        weight_KD, bias_K = self.path.head()
        loss, correct = 0.0, 0
        size = max(1, 2**22 // len(bias_K))
        for at in range(0, len(self), size):
            logits_MK = torch.addmm(bias_K, self.features_MD[at : at + size], weight_KD.T).double()
            labels_M = self.labels_M[at : at + size]
            loss += float(functional.cross_entropy(logits_MK, labels_M, reduction="sum"))
            correct += int((logits_MK.argmax(1) == labels_M).sum())
        return loss, correct

    def logits(self) -> torch.Tensor:
        """Return the logits (M, K) at the path's latest minimum."""
        weight_KD, bias_K = self.path.head()
        return torch.addmm(bias_K, self.features_MD, weight_KD.T)


def _evaluate_unseen(
    regularization: float, training_loss: float, unseen: Sequence[_Unseen]
) -> TriedFit:
    """Return the outcome of the latest minimum on images that were not fitted."""
    if _are_sets(unseen[0].labels_M):
        logits_MK = torch.cat([each.logits() for each in unseen])
        sets_MK = torch.cat([each.labels_M for each in unseen])
        loss = functional.binary_cross_entropy_with_logits(logits_MK.double(), sets_MK.double())
        mean = mean_average_precision(logits_MK.numpy(), sets_MK.numpy())
        return TriedFit(regularization, training_loss, float(loss), None, mean.value)
    sums, images = [each.loss_and_correct() for each in unseen], sum(map(len, unseen))
    losses, correct = sum(loss for loss, _ in sums), sum(hits for _, hits in sums)
    return TriedFit(regularization, training_loss, losses / images, correct / images)


def _search(
    path: _Path, unseen: Sequence[_Unseen], on_progress: Callable[[int, int], None] | None
) -> tuple[tuple[torch.Tensor, torch.Tensor], list[TriedFit]]:
    """Return the head with the smallest cost on unseen images, and all that were tried."""
    paths = {id(each.path): each.path for each in unseen} | {id(path): path}
    tried: list[TriedFit] = []
    best, best_at, improved_at = path.head(), 0, 0
    for regularization in REGULARIZATIONS:
        for each in paths.values():
            each.advance(regularization)
        tried.append(_evaluate_unseen(regularization, path.problem.loss(path.solution), unseen))
        latest, smallest = tried[-1].cost, tried[best_at].cost
        if latest < (1 - _IMPROVEMENT) * smallest:
            improved_at = len(tried) - 1
        if len(tried) == 1 or latest < smallest:
            best, best_at = path.head(), len(tried) - 1
        if on_progress:
            on_progress(len(tried), len(REGULARIZATIONS))
        if len(tried) - 1 - improved_at >= _PATIENCE:
            break
    return best, tried


def _finite(features_ND: Floats) -> torch.Tensor:
    """Return features as a tensor of its own.

    Raises:
        RunError: if one is not a finite number.
    """
    copied_ND = torch.from_numpy(np.array(features_ND, np.float32))
    broken = int((~copied_ND.isfinite().all(1)).sum())
    if broken:
        raise RunError(
            f"The model's features of {broken} of {len(copied_ND)} images are not finite numbers, "
            "so no head can be fitted on them. Set training.precision to float32, or use other "
            "weights."
        )
    return copied_ND


def _indices(labels: Labels) -> torch.Tensor:
    """Return class indices (N), or sets of labels (N, K), as a tensor of its own."""
    return torch.from_numpy(np.array(labels, np.int64))


def split_into_folds(
    labels_N: Labels, units_N: Labels | None = None, folds: int = FOLDS
) -> list[Labels]:
    """Return the rows of each fold, with a share of every class, and none with all of a class.

    Neighbours stay together, because they are often pictures of the same thing. A class of one
    image, or of images that belong together, is in no fold.

    Args:
        labels_N: the class index of each image.
        units_N: a number for each image, the same where images belong together; a fold has all of
            them or none. None if no two do.
        folds: number of folds; there are fewer if no class has as many images or units.
    """
    units_N = np.arange(len(labels_N)) if units_N is None else units_N
    classes_N = _most_frequent(labels_N, units_N)
    fold_N = np.full(len(labels_N), -1)
    for label in np.unique(classes_N):
        rows = np.flatnonzero(classes_N == label)
        _, first, unit_of, sizes = np.unique(
            units_N[rows], return_index=True, return_inverse=True, return_counts=True
        )
        if len(first) == 1:
            continue
        in_order = np.argsort(first)
        before = np.empty_like(sizes)
        before[in_order] = np.cumsum(sizes[in_order]) - sizes[in_order]
        # by the middle of each unit: the first and the last one are at least half the images apart
        fold_N[rows] = ((2 * before + sizes - 1) * folds // (2 * len(rows)))[unit_of]
    for label in np.unique(labels_N):
        rows = np.flatnonzero(labels_N == label)
        if len(set(fold_N[rows])) == 1:  # a unit of several classes has taken the rest along
            fold_N[units_N == units_N[rows[0]]] = -1
    parts = [np.flatnonzero(fold_N == fold) for fold in range(folds)]
    return [rows for rows in parts if len(rows)]


def _most_frequent(labels_N: Labels, units_N: Labels) -> Labels:
    """Return for each row the most frequent class of its unit; of equal ones the first."""
    _, unit_of = np.unique(units_N, return_inverse=True)
    classes = labels_N.max(initial=0) + 1
    pairs, counts = np.unique(unit_of * classes + labels_N, return_counts=True)
    units, labels = np.divmod(pairs, classes)
    in_order = np.lexsort((labels, -counts, units))
    _, first = np.unique(units[in_order], return_index=True)
    return labels[in_order][first][unit_of]

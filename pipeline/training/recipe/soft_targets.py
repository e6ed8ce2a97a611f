"""The targets of images that a teacher has predicted: its probabilities beside the labels.

Hinton et al., Distilling the knowledge in a neural network (arXiv 1503.02531): the probabilities of
a better model say more about an image than its label. The target of a labelled image is the mean of
its smoothed label and the teacher's probabilities, that of an unlabelled image the teacher's alone.
So the rows of one matrix take the place of class indices, and nothing else in the training differs.

The teacher's probabilities are averaged over its views of an image, instead of being kept for each:
a mean over the image and its mirror image is a better prediction than that of either, and a student
sees another crop in each epoch, so none of the stored ones would be its own. Neither teacher nor
student is tempered: the student learns the probabilities that it is used with.

Of images with sets of labels, each label is a question of its own: its target is that mean of yes
or no and of the teacher's sigmoid.

Shapes: N images, M images that the teacher has predicted, V views, n rows that are asked for, K
classes, O outputs of all views.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.training.config import TrainingConfig

Integers = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
Sets = np.ndarray[Any, np.dtype[np.uint8]]
TEACHER_WEIGHT = 0.5
"""Share of the teacher in the target of a labelled image (arXiv 2012.12877, section 4)."""
UNLABELLED = -1
"""Class index of an image without a label."""
_ROWS_AT_ONCE = 1 << 14
_HALF = 0.5


@dataclass
class SoftTargets:
    """The targets of all images, computed for the rows that are asked for.

    Attributes:
        file: logits of the teacher, float32 (M, V * K).
        num_classes: number of classes, K.
        places_N: the teacher's row of each image; -1 if it has not predicted it.
        labels_N: class index of each image; -1 if it has no label.
        smoothing: fraction of a label's target that is spread over all classes.
    """

    file: Path
    num_classes: int
    places_N: Integers
    labels_N: Integers
    smoothing: float
    _logits_MO: Any = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.labels_N)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the mapped file: each data-loader worker maps it again."""
        return {**self.__dict__, "_logits_MO": None}

    def __getitem__(self, rows: Any) -> Floats:
        """Return the targets (n, K) of some rows; each sums to 1, unless it is a set."""
        labels_n, places_n = self.labels_N[rows], self.places_N[rows]
        taught_nK, label_nK = self.teacher(rows), self._smoothed(rows)
        share_n = np.where(labels_n < 0, 1.0, TEACHER_WEIGHT) * (places_n >= 0)
        share_n1 = share_n[:, None].astype(np.float32)
        targets_nK: Floats = (1 - share_n1) * label_nK + share_n1 * taught_nK
        return targets_nK

    def teacher(self, rows: Any) -> Floats:
        """Return the teacher's probabilities (n, K) of some rows; 0 where it has predicted none."""
        places_n = self.places_N[rows]
        stored_nO = np.array(self._mapped()[np.maximum(places_n, 0)], np.float32)
        logits_nVK = stored_nO.reshape(len(stored_nO), -1, self.num_classes)
        mean_nK = self._probabilities(logits_nVK).mean(axis=1)
        taught_nK: Floats = (mean_nK * (places_n >= 0)[:, None]).astype(np.float32)
        return taught_nK

    def classes(self) -> Integers:
        """Return the class (N,) of each image: its label, or the teacher's most probable class."""
        classes_N = self.labels_N.copy()
        unlabelled = np.flatnonzero(classes_N < 0)
        for start in range(0, len(unlabelled), _ROWS_AT_ONCE):
            rows = unlabelled[start : start + _ROWS_AT_ONCE]
            classes_N[rows] = self.teacher(rows).argmax(1)
        return classes_N

    def _smoothed(self, rows: Any) -> Floats:
        """Return the smoothed labels (n, K) of some rows."""
        label_nK = (self.labels_N[rows][:, None] == np.arange(self.num_classes)).astype(np.float32)
        smoothed_nK: Floats = label_nK * (1 - self.smoothing) + self.smoothing / self.num_classes
        return smoothed_nK

    @staticmethod
    def _probabilities(logits_nVK: Floats) -> Floats:
        powers_nVK = np.exp(logits_nVK - logits_nVK.max(axis=-1, keepdims=True))
        probabilities_nVK: Floats = powers_nVK / powers_nVK.sum(axis=-1, keepdims=True)
        return probabilities_nVK

    def _mapped(self) -> Any:
        if self._logits_MO is None:
            self._logits_MO = np.load(self.file, mmap_mode="r", allow_pickle=False)
        return self._logits_MO


@dataclass
class SoftSetTargets(SoftTargets):
    """The targets of images with sets of labels.

    Attributes:
        sets_NK: the sets of labels: 1 where a labelled image has a label, otherwise 0; those of the
            unlabelled images, which follow the labelled ones, are the labels of a probability of
            0.5 or more.
    """

    sets_NK: Sets = field(kw_only=True)

    def __post_init__(self) -> None:
        """Add the sets that the teacher gives unlabelled images."""
        stored = len(self.sets_NK)
        further = np.zeros((len(self.labels_N) - stored, self.num_classes), np.uint8)
        for start in range(0, len(further), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            rows = stored + np.arange(len(further))[part]
            further[part] = self.teacher(rows) >= _HALF
        self.sets_NK = np.concatenate([self.sets_NK, further])

    def classes(self) -> Integers:
        """Return the rarest label (N,) of each image, K for an image without any."""
        return label_sets.strata(self.sets_NK)

    def _smoothed(self, rows: Any) -> Floats:
        label_nK = self.sets_NK[rows].astype(np.float32)
        smoothed_nK: Floats = label_nK * (1 - self.smoothing) + self.smoothing / 2
        return smoothed_nK

    @staticmethod
    def _probabilities(logits_nVK: Floats) -> Floats:
        from scipy.special import expit

        probabilities_nVK: Floats = expit(logits_nVK)
        return probabilities_nVK


def soft_targets(
    file: Path,
    num_classes: int,
    taught_rows: Integers,
    labels_N: Integers,
    settings: TrainingConfig,
    sets_NK: Sets | None = None,
) -> SoftTargets:
    """Return the targets of all images of a run with a teacher.

    Args:
        file: logits of the teacher, float32 (M, V * K).
        num_classes: number of classes, K.
        taught_rows: the images (M,) that they are of.
        labels_N: class index of each image; -1 if it has no label.
        settings: the settings of training, with the smoothing of labels.
        sets_NK: labels of the images that have some, which come first, as 0 and 1; None if each has
            one class.
    """
    places_N = np.full(len(labels_N), -1, np.int64)
    places_N[taught_rows] = np.arange(len(taught_rows))
    smoothing = settings.label_smoothing or 0.0
    if sets_NK is None:
        return SoftTargets(file, num_classes, places_N, labels_N, smoothing)
    return SoftSetTargets(file, num_classes, places_N, labels_N, smoothing, sets_NK=sets_NK)

"""Targets from labels and a teacher, as rows of one matrix."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from patchline.pipeline.labels import label_sets
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.recipe.losses import training_loss
from patchline.pipeline.training.recipe.mixing import Mix, dominant_labels, mixed_targets
from patchline.pipeline.training.recipe.soft_targets import (
    SoftSetTargets,
    SoftTargets,
    soft_targets,
)

LOGITS_MVK = np.array(
    [
        [[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]],
        [[0.0, 3.0, 0.0], [0.0, 2.0, 1.0]],
        [[-1.0, 0.0, 4.0], [0.0, 0.0, 5.0]],
    ],
    np.float32,
)
"""Of the images 0 and 2, which have labels, and of image 3, which has none."""
LABELS_N = np.array([0, 1, 2, -1])


def targets_with(folder: Path, **settings: float) -> SoftTargets:
    """Return the targets of four images: image 1, of the validation split, was not predicted."""
    file = folder / "logits.npy"
    np.save(file, LOGITS_MVK.reshape(3, -1))
    config = TrainingConfig(teacher="photos/1", **{"label_smoothing": 0.0, **settings})
    return soft_targets(file, 3, np.array([0, 2, 3]), LABELS_N, config)


def mean_probabilities(temperature: float = 1.0) -> torch.Tensor:
    """Return what torch says is the mean over the views."""
    return torch.from_numpy(LOGITS_MVK / temperature).softmax(-1).mean(1)


def test_a_target_is_the_label_and_the_mean_over_the_teachers_views(tmp_path: Path) -> None:
    """An unlabelled image has the teacher alone, an image without a prediction its label alone."""
    targets = targets_with(tmp_path, teacher_weight=0.25, label_smoothing=0.3)
    taught = mean_probabilities().numpy()
    label_KK = 0.7 * np.eye(3) + 0.1
    expected = np.stack(
        [
            0.75 * label_KK[0] + 0.25 * taught[0],
            label_KK[1],
            0.75 * label_KK[2] + 0.25 * taught[1],
            taught[2],
        ]
    )
    rows = np.arange(4)
    assert np.allclose(targets[rows], expected, atol=1e-6)
    assert np.allclose(targets[rows].sum(1), 1, atol=1e-6)
    assert np.allclose(targets[rows[::-1]], expected[::-1], atol=1e-6)
    assert targets.classes().tolist() == [0, 1, 2, 2]
    assert len(targets) == 4


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_divides_the_teachers_logits(tmp_path: Path, temperature: float) -> None:
    """As in arXiv 1503.02531, section 2."""
    targets = targets_with(tmp_path, teacher_weight=1.0, teacher_temperature=temperature)
    expected = mean_probabilities(temperature).numpy()
    assert np.allclose(targets[np.array([0, 2, 3])], expected, atol=1e-6)


def test_temperature_0_takes_the_teachers_class_alone(tmp_path: Path) -> None:
    """Hard distillation, as in arXiv 2012.12877, section 4."""
    targets = targets_with(tmp_path, teacher_weight=1.0, teacher_temperature=0.0)
    assert targets[np.array([0, 2, 3])].tolist() == np.eye(3)[[0, 1, 2]].tolist()


def test_data_loader_workers_map_the_file_again(tmp_path: Path) -> None:
    """What is sent to a worker is small, and says the same."""
    targets = targets_with(tmp_path)
    before = targets[np.arange(4)]
    sent = pickle.dumps(targets)  # as torch sends it
    assert np.array_equal(pickle.loads(sent)[np.arange(4)], before)  # noqa: S301 - made above
    assert targets.__getstate__()["_logits_MO"] is None


def test_soft_targets_are_mixed_as_labels_are() -> None:
    """One-hot rows give the same mixture and the same loss as the class indices."""
    labels_B = torch.tensor([0, 2, 1, 1])
    rows_BK = torch.eye(3)[labels_B]
    mix = Mix(0.7)
    mixed_BK = mixed_targets(rows_BK, 3, mix)
    assert torch.allclose(mixed_BK, mixed_targets(labels_B, 3, mix))
    assert torch.equal(dominant_labels(rows_BK.argmax(1), mix), labels_B)
    logits_BK = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    config = TrainingConfig(label_smoothing=0.1)
    assert torch.allclose(
        training_loss(logits_BK, rows_BK, config), training_loss(logits_BK, labels_B, config)
    )


SETS_NK = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0]], np.uint8)
"""Of the images 0 to 2; image 3 has none that is known."""


def set_targets_with(folder: Path, **settings: float) -> SoftSetTargets:
    """Return the targets of four images with sets of labels, of which image 1 was not predicted."""
    file = folder / "logits.npy"
    np.save(file, LOGITS_MVK.reshape(3, -1))
    config = TrainingConfig(teacher="photos/1", **{"label_smoothing": 0.0, **settings})
    found = soft_targets(file, 3, np.array([0, 2, 3]), np.array([0, 1, 3, -1]), config, SETS_NK)
    assert isinstance(found, SoftSetTargets)
    return found


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_target_of_a_set_is_a_mean_for_each_label(tmp_path: Path, temperature: float) -> None:
    """An unlabelled image has the teacher's sigmoids alone; an empty set is a set."""
    settings = {"teacher_weight": 0.25, "label_smoothing": 0.1, "teacher_temperature": temperature}
    targets = set_targets_with(tmp_path, **settings)
    taught_MK = torch.from_numpy(LOGITS_MVK / temperature).sigmoid().mean(1).numpy()
    smoothed_NK = 0.9 * SETS_NK + 0.05
    expected = np.stack(
        [
            0.75 * smoothed_NK[0] + 0.25 * taught_MK[0],
            smoothed_NK[1],
            0.75 * smoothed_NK[2] + 0.25 * taught_MK[1],
            taught_MK[2],
        ]
    )
    rows = np.arange(4)
    assert np.allclose(targets[rows], expected, atol=1e-6)
    assert np.allclose(pickle.loads(pickle.dumps(targets))[rows[::-1]], expected[::-1], atol=1e-6)  # noqa: S301


def test_an_unlabelled_image_has_the_labels_that_its_teacher_thinks_probable(
    tmp_path: Path,
) -> None:
    """Weights and previews count them; hard targets are these labels, for every image."""
    targets = set_targets_with(tmp_path, teacher_temperature=0.0, teacher_weight=1.0)
    mean_MK = torch.from_numpy(LOGITS_MVK).sigmoid().mean(1).numpy()
    assert np.array_equal(targets.sets_NK[:3], SETS_NK)
    assert np.array_equal(targets.sets_NK[3], mean_MK[2] >= 0.5)
    assert targets.classes().tolist() == label_sets.strata(targets.sets_NK).tolist()
    assert np.array_equal(targets[np.array([0, 3])], mean_MK[[0, 2]] >= 0.5)

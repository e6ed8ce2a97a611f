"""Targets from labels and a teacher, as rows of one matrix."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from patchline.pipeline.labels import label_sets
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.recipe.soft_targets import SoftTargets, soft_targets

LOGITS_MVK = np.array(
    [
        [[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]],
        [[0.0, 3.0, 0.0], [0.0, 2.0, 1.0]],
        [[-1.0, 0.0, 4.0], [0.0, 0.0, 5.0]],
    ],
    np.float32,
)
"""Of the images 0 and 2, which have labels, and of image 3, which has none."""
SETS_NK = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0]], np.uint8)
"""Of the images 0 to 2."""


def _targets(folder: Path, *, sets: bool = False, **settings: float) -> SoftTargets:
    """Return the targets of four images: image 1, of the validation split, was not predicted."""
    np.save(folder / "logits.npy", LOGITS_MVK.reshape(3, -1))
    config = TrainingConfig(teacher="photos/1", **{"label_smoothing": 0.0, **settings})
    labels_N = np.array([0, 1, 3 if sets else 2, -1])
    given: tuple[Any, ...] = (SETS_NK,) if sets else ()
    return soft_targets(folder / "logits.npy", 3, np.array([0, 2, 3]), labels_N, config, *given)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("sets", [False, True])
def test_a_target_is_the_label_and_the_mean_over_the_teachers_views(
    tmp_path: Path, temperature: float, *, sets: bool
) -> None:
    """An unlabelled image has the teacher alone, an image without a prediction its label alone.

    Temperature divides the logits, as in arXiv 1503.02531, section 2. A data-loader worker gets a
    file's name, and reads the same.
    """
    settings = {"teacher_weight": 0.25, "label_smoothing": 0.3, "teacher_temperature": temperature}
    targets = _targets(tmp_path, sets=sets, **settings)
    logits_MVK = torch.from_numpy(LOGITS_MVK / temperature)
    taught = (logits_MVK.sigmoid() if sets else logits_MVK.softmax(-1)).mean(1).numpy()
    label = 0.7 * SETS_NK + 0.15 if sets else 0.7 * np.eye(3) + 0.1
    expected = np.stack(
        [
            0.75 * label[0] + 0.25 * taught[0],
            label[1],
            0.75 * label[2] + 0.25 * taught[1],
            taught[2],
        ]
    )
    rows = np.arange(4)
    assert np.allclose(targets[rows], expected, atol=1e-6)
    sent = pickle.loads(pickle.dumps(targets))  # noqa: S301 - as torch sends it
    assert np.allclose(sent[rows[::-1]], expected[::-1], atol=1e-6)
    assert targets.__getstate__()["_logits_MO"] is None


def test_temperature_0_takes_the_teachers_class_alone(tmp_path: Path) -> None:
    """Hard distillation, as in arXiv 2012.12877, section 4."""
    targets = _targets(tmp_path, teacher_weight=1.0, teacher_temperature=0.0)
    assert targets[np.array([0, 2, 3])].tolist() == np.eye(3)[[0, 1, 2]].tolist()
    assert targets.classes().tolist() == [0, 1, 2, 2]


def test_an_unlabelled_image_has_the_labels_that_its_teacher_thinks_probable(
    tmp_path: Path,
) -> None:
    """Weights and previews count them; hard targets are these labels, for every image."""
    targets: Any = _targets(tmp_path, sets=True, teacher_temperature=0.0, teacher_weight=1.0)
    mean_MK = torch.from_numpy(LOGITS_MVK).sigmoid().mean(1).numpy()
    assert np.array_equal(targets.sets_NK[:3], SETS_NK)
    assert np.array_equal(targets.sets_NK[3], mean_MK[2] >= 0.5)
    assert targets.classes().tolist() == label_sets.strata(targets.sets_NK).tolist()
    assert np.array_equal(targets[np.array([0, 3])], mean_MK[[0, 2]] >= 0.5)

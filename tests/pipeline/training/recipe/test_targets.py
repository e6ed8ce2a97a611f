"""MixUp and CutMix as torchvision's, and targets from labels and a teacher."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.recipe.mixing import (
    Mix,
    dominant_labels,
    draw_mix,
    mix_images,
    mix_targets,
)
from patchline.pipeline.training.recipe.soft_targets import SoftTargets, soft_targets

CLASSES, SIDE = 5, 16
LABELS_B = torch.tensor([0, 3, 1, 4, 4, 2])


def _images() -> torch.Tensor:
    return torch.randn(len(LABELS_B), 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def _drawn(step: int, seed: int = 0, **alphas: float) -> Mix:
    mix = draw_mix(TrainingConfig.model_validate(alphas), seed, step, SIDE, SIDE)
    assert mix is not None
    return mix


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_images_and_targets_are_those_of_torchvision(name: str, step: int) -> None:
    """With the same ratio and box, images and targets agree to 1e-6."""
    mix = _drawn(step, mixup=float(name == "mixup"), cutmix=float(name == "cutmix"))
    params: dict[str, Any] = {"labels": LABELS_B, "batch_size": len(LABELS_B)}
    theirs: Any
    if mix.box is None:
        theirs, params["lam"] = v2.MixUp(num_classes=CLASSES), mix.share
    else:
        top, left, bottom, right = mix.box
        theirs = v2.CutMix(num_classes=CLASSES)
        params |= {"box": (left, top, right, bottom), "lam_adjusted": mix.share}
    images, expected = _images(), theirs.transform(_images(), params)
    assert torch.allclose(mix_images(images, mix), expected, rtol=0, atol=1e-6)
    assert torch.equal(images, _images()), "the input is not modified"
    targets = mix_targets(LABELS_B, CLASSES, mix)
    assert torch.allclose(targets, theirs.transform(LABELS_B, params), rtol=0, atol=1e-6)


def test_the_share_of_cutmix_is_that_of_the_pixels() -> None:
    """The target's share equals the fraction of pixels that an image keeps, at the border too."""
    before = torch.arange(6.0)[:, None, None, None].expand(6, 1, SIDE, SIDE)
    for step in range(50):
        mix = _drawn(step, cutmix=1.0)
        kept = float((mix_images(before, mix)[0] == 0).float().mean())
        assert mix.share == pytest.approx(kept, abs=1e-6)


def test_a_draw_depends_on_seed_and_step_alone() -> None:
    """The same seed and step repeat the draw; others give another one."""
    assert _drawn(7, mixup=0.4) == _drawn(7, mixup=0.4)
    draws = {_drawn(step, seed, mixup=0.4) for step in range(10) for seed in range(3)}
    assert len(draws) == 30


def test_both_share_the_batches() -> None:
    """With both on, about half of the batches get each; with none, no batch is mixed."""
    cut = [_drawn(step, mixup=1.0, cutmix=1.0).box is not None for step in range(400)]
    assert 160 < sum(cut) < 240
    assert draw_mix(TrainingConfig(), 0, 0, SIDE, SIDE) is None


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_the_dominant_label_is_that_of_the_larger_share(share: float) -> None:
    """Accuracy is counted against the class with the highest target."""
    targets = mix_targets(LABELS_B, CLASSES, Mix(share))
    assert torch.equal(dominant_labels(LABELS_B, Mix(share)), targets.argmax(1))


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


def _targets(folder: Path, *, sets: bool = False, smoothing: float = 0.0) -> SoftTargets:
    """Return the targets of four images: image 1, of the validation split, was not predicted."""
    np.save(folder / "logits.npy", LOGITS_MVK.reshape(3, -1))
    config = TrainingConfig(teacher="photos/1", label_smoothing=smoothing)
    labels_N = np.array([0, 1, 3 if sets else 2, -1])
    given: tuple[Any, ...] = (SETS_NK,) if sets else ()
    return soft_targets(folder / "logits.npy", 3, np.array([0, 2, 3]), labels_N, config, *given)


@pytest.mark.parametrize("sets", [False, True])
def test_a_target_is_the_label_and_the_mean_over_the_teachers_views(
    tmp_path: Path, *, sets: bool
) -> None:
    """An unlabelled image has the teacher alone, an image without a prediction its label alone.

    A data-loader worker gets a file's name, and reads the same.
    """
    targets = _targets(tmp_path, sets=sets, smoothing=0.3)
    logits_MVK = torch.from_numpy(LOGITS_MVK)
    taught = (logits_MVK.sigmoid() if sets else logits_MVK.softmax(-1)).mean(1).numpy()
    label = 0.7 * SETS_NK + 0.15 if sets else 0.7 * np.eye(3) + 0.1
    expected = np.stack(
        [
            (label[0] + taught[0]) / 2,
            label[1],
            (label[2] + taught[1]) / 2,
            taught[2],
        ]
    )
    rows = np.arange(4)
    assert np.allclose(targets[rows], expected, atol=1e-6)
    sent = pickle.loads(pickle.dumps(targets))  # noqa: S301 - as torch sends it
    assert np.allclose(sent[rows[::-1]], expected[::-1], atol=1e-6)
    assert targets.__getstate__()["_logits_MO"] is None


def test_an_unlabelled_image_has_the_class_that_its_teacher_thinks_most_probable(
    tmp_path: Path,
) -> None:
    """Class weights and previews count it."""
    assert _targets(tmp_path).classes().tolist() == [0, 1, 2, 2]


def test_an_unlabelled_image_has_the_labels_that_its_teacher_thinks_probable(
    tmp_path: Path,
) -> None:
    """Class weights and previews count them."""
    targets: Any = _targets(tmp_path, sets=True)
    mean_MK = torch.from_numpy(LOGITS_MVK).sigmoid().mean(1).numpy()
    assert np.array_equal(targets.sets_NK[:3], SETS_NK)
    assert np.array_equal(targets.sets_NK[3], mean_MK[2] >= 0.5)
    assert targets.classes().tolist() == label_sets.strata(targets.sets_NK).tolist()

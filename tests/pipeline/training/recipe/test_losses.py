"""The losses equal torch's own and the authors' asymmetric one, for one label and for sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.recipe.losses import (
    compute_class_weights,
    positive_weights,
    sentence_on_limited_weights,
    set_loss,
    training_loss,
)
from patchline.pipeline.training.recipe.mixing import Mix, mix_targets
from tests.pipeline.training.trained_jobs import Make, opened

LOGITS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 1, 3, 2, 1])
SOFT = torch.softmax(torch.randn(6, 4, generator=torch.Generator().manual_seed(2)), 1)
WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 3.0])


def _loss(targets: torch.Tensor, weights: torch.Tensor | None = None, **settings: Any) -> float:
    return float(training_loss(LOGITS, targets, TrainingConfig(**settings), weights))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_losses_are_those_of_torch(smoothing: float) -> None:
    """Cross-entropy, and binary cross-entropy with smoothed answers to one question a class."""
    expected = functional.cross_entropy(LOGITS, SOFT, label_smoothing=smoothing)
    assert _loss(SOFT, label_smoothing=smoothing) == pytest.approx(float(expected))
    smoothed = (1 - smoothing) * SOFT + smoothing / 4
    expected = functional.binary_cross_entropy(torch.sigmoid(LOGITS), smoothed)
    found = _loss(SOFT, loss="bce", label_smoothing=smoothing)
    assert found == pytest.approx(float(expected))


def test_class_weights_scale_the_loss_of_each_image() -> None:
    """A weighted loss is the mean over the images of weight times loss."""
    plain = {"label_smoothing": 0.0}
    losses = functional.cross_entropy(LOGITS, LABELS, reduction="none")
    expected = float((losses * WEIGHTS[LABELS]).mean())
    assert _loss(LABELS, WEIGHTS, **plain) == pytest.approx(expected)
    torchs = functional.cross_entropy(LOGITS, SOFT, WEIGHTS)  # of soft targets: over all images
    assert _loss(SOFT, WEIGHTS, **plain) == pytest.approx(float(torchs))
    one_hot = functional.one_hot(LABELS, 4).float()
    losses = functional.binary_cross_entropy_with_logits(LOGITS, one_hot, reduction="none").mean(1)
    expected = float((losses * WEIGHTS[LABELS]).mean())
    assert _loss(LABELS, WEIGHTS, loss="bce", **plain) == pytest.approx(expected)


@pytest.mark.parametrize("loss", ["cross_entropy", "bce"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_an_index_is_a_target_of_one(loss: str, weights: torch.Tensor | None) -> None:
    """Class indices and their one-hot vectors have the same loss."""
    one_hot = functional.one_hot(LABELS, 4).float()
    assert _loss(LABELS, weights, loss=loss) == pytest.approx(_loss(one_hot, weights, loss=loss))


def test_balanced_weights_are_inverse_frequencies() -> None:
    """Three times as many images, a third of the weight; 1 on average over the images."""
    labels = np.array([0] * 6 + [1] * 2)
    weights = compute_class_weights(labels, 3)
    assert weights.tolist() == pytest.approx([8 / 12, 8 / 4, 0.0])
    assert float(weights[labels].mean()) == pytest.approx(1.0)


def test_the_settings_decide_the_loss_of_a_training(make: Make) -> None:
    """The step of a training uses the class frequencies of its training split."""
    job = make(training={"class_balance": "weights", "loss": "bce"})
    training = opened(job)
    labels = training.data.labels[training.data.training.rows]
    logits, targets = torch.randn(len(labels), 3), torch.from_numpy(labels)
    weights = compute_class_weights(labels, 3)
    expected = training_loss(logits, targets, job.config.training, weights)
    assert torch.equal(training.step.objective.loss(logits, targets), expected)


_random = torch.Generator().manual_seed(0)
SET_LOGITS = 4 * torch.randn(40, 9, generator=_random)
SETS = (torch.rand(40, 9, generator=_random) < 0.25).float()


def _config(**settings: Any) -> TrainingConfig:
    return TrainingConfig(**settings).for_labels(several=True)


def _authors(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the asymmetric loss as its authors compute it, divided by the number of labels.

    Ridnik et al., https://github.com/Alibaba-MIIL/ASL, src/loss_functions/losses.py, with the
    gradients of the focusing factors, which their flag leaves out.
    """
    gamma_neg, gamma_pos, clip, eps = 4, 0, 0.05, 1e-8
    positive = torch.sigmoid(x)
    negative = (1 - positive + clip).clamp(max=1)
    loss = y * torch.log(positive.clamp(min=eps)) + (1 - y) * torch.log(negative.clamp(min=eps))
    pt = positive * y + negative * (1 - y)
    weight = torch.pow(1 - pt, gamma_pos * y + gamma_neg * (1 - y))
    return -(loss * weight).sum() / y.numel()


@pytest.mark.parametrize(
    ("settings", "slope", "least"), [({}, 1, 0), ({"label_smoothing": 0.2}, 0.8, 0.1)]
)
def test_sets_are_learned_with_binary_cross_entropy(
    settings: dict[str, Any], slope: float, least: float
) -> None:
    """Of the bare labels by default; 0.2 makes 0.9 of one that is present, 0.1 of another."""
    expected = functional.binary_cross_entropy_with_logits(SET_LOGITS, SETS * slope + least)
    assert set_loss(SET_LOGITS, SETS, _config(**settings)) == pytest.approx(float(expected))


def test_the_asymmetric_loss_is_the_authors() -> None:
    """Value and gradient, with the exponents and the clip of the paper."""
    own, theirs = SET_LOGITS.clone().requires_grad_(), SET_LOGITS.clone().requires_grad_()
    loss = set_loss(own, SETS, _config(loss="asymmetric"))
    expected = _authors(theirs, SETS)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    expected.backward()  # type: ignore[no-untyped-call]
    assert own.grad is not None
    torch.testing.assert_close(own.grad, theirs.grad, rtol=1e-4, atol=1e-7)


def test_extreme_logits_have_finite_losses_and_gradients() -> None:
    """Of labels that are present and absent."""
    logits = torch.tensor([[-500.0, -3.0, 0.0, 200.0, 500.0]]).repeat(2, 1).requires_grad_()
    sets = torch.tensor([[0.0] * 5, [1.0] * 5])
    loss = set_loss(logits, sets, _config(loss="asymmetric"))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("loss", ["bce", "asymmetric"])
def test_a_mixed_target_counts_as_its_shares_of_yes_and_no(loss: str) -> None:
    """The union of two sets, each label by the share of the image that has it."""
    mixed = mix_targets(SETS[:2], 9, Mix(0.7))
    assert set(mixed.flatten().tolist()) <= {0.0, *torch.tensor([0.3, 0.7, 1.0]).tolist()}
    assert torch.equal(mixed > 0, (SETS[:2] + SETS[:2].roll(1, 0)) > 0)
    config = _config(loss=loss)
    parts = [set_loss(SET_LOGITS[:2], each, config) for each in (SETS[:2], SETS[:2].roll(1, 0))]
    expected = 0.7 * parts[0] + 0.3 * parts[1]
    assert set_loss(SET_LOGITS[:2], mixed, config) == pytest.approx(float(expected), rel=1e-5)


def test_balanced_weights_are_negatives_over_positives_up_to_a_limit() -> None:
    """What is limited is said; labels of all images or none weigh as usual."""
    sets_NK = np.zeros((1000, 5), np.uint8)
    sets_NK[:250, 0] = sets_NK[:10, 1] = sets_NK[:, 2] = sets_NK[:900, 4] = 1
    weights_K = positive_weights(sets_NK)
    assert weights_K.tolist() == pytest.approx([3, 20, 1, 1, 1 / 9])
    sentence = sentence_on_limited_weights(sets_NK, ["a", "rare", "all", "none", "most"])
    assert sentence.endswith("it would be more: rare (10 of 1,000)")
    assert sentence_on_limited_weights(sets_NK[:, :1], ["a"]) == ""
    weighted = set_loss(SET_LOGITS, SETS, _config(), torch.full((9,), 3.0))
    expected = functional.binary_cross_entropy_with_logits(
        SET_LOGITS, SETS, pos_weight=torch.full((9,), 3.0)
    )
    assert weighted == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("settings", "several", "words"),
    [
        ({"loss": "cross_entropy"}, True, "exactly one for each image. Set training.loss to bce"),
        ({"class_balance": "sampling"}, True, "Set training.class_balance to weights"),
        ({"loss": "asymmetric"}, False, "Set training.loss to cross_entropy or bce"),
    ],
)
def test_settings_of_the_other_kind_of_labels_are_refused(
    settings: dict[str, Any], several: bool, words: str
) -> None:
    """One sentence with the remedy."""
    with pytest.raises(ValueError, match=r"several labels|one label") as raised:
        TrainingConfig(**settings).for_labels(several=several)
    assert words in str(raised.value)


def test_the_loss_follows_the_labels_unless_it_is_set() -> None:
    """One label is learned as ever."""
    one, several = (TrainingConfig().for_labels(several=each) for each in (False, True))
    assert (one.loss, one.label_smoothing) == ("cross_entropy", 0.1)
    assert (several.loss, several.label_smoothing) == ("bce", 0.0)
    assert TrainingConfig(label_smoothing=0.3).for_labels(several=True).label_smoothing == 0.3
    assert TrainingConfig(loss="bce").for_labels(several=False).loss == "bce"

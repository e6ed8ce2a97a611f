"""Which validation has the best weights."""

from __future__ import annotations

import pytest

from patchline.pipeline.training.train_result import EpochRecord


def _best(*scores: tuple[float | None, float], images: int, positives: float = 0.0) -> int:
    history = [
        EpochRecord(
            epoch=step,
            step=step,
            train_loss=1.0,
            train_accuracy=0.9,
            validation_loss=loss,
            validation_accuracy=None if positives else score,
            validation_map=score if positives else None,
            map_positives=positives,
            learning_rate=1e-3,
            images_per_second=100.0,
            validation_images=images,
        )
        for step, (score, loss) in enumerate(scores, start=1)
    ]
    best = history[0]
    for number, record in enumerate(history[1:], start=2):
        best = record if record.replaces(best, history[:number]) else best
    return best.step


@pytest.mark.parametrize(
    ("images", "chosen"),
    [
        (100_000, 2),  # the accuracies differ
        (261, 3),  # 98.9% of few images may be as good as 99.2%: the lower loss counts
        (6, 5),
    ],
)
def test_with_few_images_the_loss_decides(images: int, chosen: int) -> None:
    """An early high accuracy at a high loss is luck, unless many images say the same."""
    history = ((0.65, 2.1), (0.992, 0.195), (0.989, 0.139), (0.981, 0.14), (0.91, 0.13))
    assert _best(*history, images=images) == chosen


def test_a_low_loss_does_not_excuse_a_low_accuracy() -> None:
    """Nor does the choice drift down in steps that are each within the error."""
    drifting = [(0.9 - 0.01 * step, 1.0 - 0.1 * step) for step in range(8)]
    assert _best(*drifting, images=400) == 2
    assert _best((0.5, 0.1), (0.9, 0.5), images=100) == 2


def test_perfect_accuracies_of_few_images_are_not_certain() -> None:
    """All of ten images right still has an error, so nine with a lower loss may be better."""
    assert _best((1.0, 0.5), (0.9, 0.2), images=10) == 2
    assert _best((1.0, 0.5), (0.9, 0.2), images=10_000) == 1


def test_positives_tell_how_certain_a_map_is() -> None:
    """Within a standard error of the highest, the loss decides."""
    assert _best((0.80, 0.5), (0.77, 0.4), images=5000, positives=40) == 2
    assert _best((0.80, 0.5), (0.77, 0.4), images=5000, positives=4000) == 1


def test_without_classes_the_loss_decides() -> None:
    """There is no accuracy."""
    assert _best((None, 3.0), (None, 1.0), (None, 2.0), images=50) == 2

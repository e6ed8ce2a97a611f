"""The galleries hold the images that their definitions name, in that order."""

from __future__ import annotations

import numpy as np
import pytest

from patchline.pipeline.evaluation import galleries
from patchline.pipeline.evaluation.predictions import Predictions
from tests.pipeline.evaluation.conftest import made_of, random_predictions


def _doubted_by_hand(predictions: Predictions) -> dict[int, float]:
    """Return doubtful places and margins, written out from the paper's definitions."""
    table, labels = predictions.probabilities_NK, predictions.labels_N
    thresholds = {
        k: np.mean([p[k] for p, label in zip(table, labels, strict=True) if label == k])
        for k in set(labels)
    }
    found = {}
    for place, (p, label) in enumerate(zip(table, labels, strict=True)):
        passing = [k for k, threshold in thresholds.items() if p[k] >= threshold]
        if passing:
            best = max(passing, key=lambda k: p[k])
            if best != label and p[best] > p[label]:
                found[place] = p[best] - p[label]
    return found


@pytest.mark.parametrize("num_classes", [2, 3, 10])
@pytest.mark.parametrize("skill", [0.0, 2.0])
def test_label_errors_are_those_of_the_papers_definition(num_classes: int, skill: float) -> None:
    """Confident learning written out by hand doubts the same labels in the same order."""
    predictions = random_predictions(150, num_classes, skill=skill)
    expected = _doubted_by_hand(predictions)
    found = galleries.likely_label_errors(predictions)
    assert set(found) == set(expected)
    margins = [expected[place] for place in found]
    assert margins == sorted(margins, reverse=True)
    assert len(expected) > 0


def test_labels_that_were_changed_are_found() -> None:
    """With a good model, ten wrong labels among 500 are the first ten that are doubted."""
    good = random_predictions(500, 5, skill=8.0)
    labels = good.labels_N.tolist()
    changed = range(0, 100, 10)
    for place in changed:
        labels[place] = (labels[place] + 1) % 5
    predictions = made_of(good.probabilities_NK, labels)
    assert set(galleries.likely_label_errors(predictions)[:10]) == set(changed)


def test_a_class_without_images_is_never_suspected() -> None:
    """A class that no image has cannot be what a label should have been."""
    predictions = made_of(np.array([[0.1, 0.2, 0.7], [0.1, 0.3, 0.6]]), [0, 1])
    assert len(galleries.likely_label_errors(predictions)) == 0


def test_a_perfect_model_doubts_nothing() -> None:
    """Without errors there are neither confident errors nor doubtful labels."""
    predictions = made_of(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), [0, 1, 0])
    assert len(galleries.confident_errors(predictions)) == 0
    assert len(galleries.likely_label_errors(predictions)) == 0


def test_confident_errors_are_all_errors_surest_first() -> None:
    """Every error is listed once, by the probability of the wrong answer."""
    predictions = random_predictions(200, 4)
    places = galleries.confident_errors(predictions)
    table = predictions.table
    wrong = table[table["predicted"] != table["label"]]
    assert sorted(places) == list(wrong.index)
    surest = table["probability"].iloc[places].tolist()
    assert surest == sorted(surest, reverse=True)


@pytest.mark.parametrize("num_classes", [2, 7])
def test_the_least_certain_have_the_smallest_margin(num_classes: int) -> None:
    """Images are ordered by the distance of their two most probable classes."""
    predictions = random_predictions(100, num_classes)
    margins = []
    for place in galleries.least_certain(predictions):
        first, second = np.sort(predictions.probabilities_NK[place])[::-1][:2]
        margins.append(first - second)
    assert margins == sorted(margins)
    assert len(margins) == 100


def test_an_image_says_what_the_model_thought() -> None:
    """Label, the three most probable classes and the row in the table stand with the image."""
    predictions = made_of(np.array([[0.3, 0.1, 0.4, 0.2], [0.7, 0.1, 0.1, 0.1]]), [1, 0])
    classes = [f"class {k}" for k in range(4)]
    [image] = galleries.gallery(predictions, classes, np.array([0]))
    assert (image.path, image.position, image.label) == ("0.png", 0, "class 1")
    assert [answer.name for answer in image.answers] == ["class 2", "class 0", "class 3"]
    assert [answer.probability for answer in image.answers] == pytest.approx([0.4, 0.3, 0.2])
    assert image.label_probability == pytest.approx(0.1)
    assert image.predicted == "class 2"
    assert image.probability == pytest.approx(0.4)


def test_two_classes_give_two_answers() -> None:
    """With fewer than three classes every one of them is listed."""
    predictions = made_of(np.array([[0.3, 0.7]]), [0])
    [image] = galleries.gallery(predictions, ["a", "b"], np.array([0]))
    assert [answer.name for answer in image.answers] == ["b", "a"]

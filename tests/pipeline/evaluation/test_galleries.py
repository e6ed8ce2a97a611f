"""The galleries hold the images that their definitions name, in that order."""

from __future__ import annotations

import numpy as np
import pytest

from patchline.pipeline.evaluation import galleries
from patchline.pipeline.evaluation.predictions import Predictions
from tests.pipeline.evaluation.conftest import random_predictions


def _doubted_by_hand(predictions: Predictions) -> dict[int, float]:
    """Return doubtful places and margins, written out from the paper's definitions."""
    table, labels = predictions.probabilities_NK, predictions.labels
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


@pytest.mark.parametrize(("num_classes", "skill"), [(3, 0.0), (10, 2.0)])
def test_label_errors_are_those_of_the_papers_definition(num_classes: int, skill: float) -> None:
    """Confident learning written out by hand doubts the same labels in the same order."""
    predictions = random_predictions(150, num_classes, skill=skill)
    expected = _doubted_by_hand(predictions)
    found = galleries.likely_label_errors(predictions)
    assert set(found) == set(expected)
    margins = [expected[place] for place in found]
    assert margins == sorted(margins, reverse=True)
    assert len(expected) > 0


def test_confident_errors_are_all_errors_surest_first() -> None:
    """Every error is listed once, by the probability of the wrong answer."""
    predictions = random_predictions(200, 4)
    places = galleries.confident_errors(predictions)
    table = predictions.table
    wrong = table[table["predicted"] != table["label"]]
    assert sorted(places) == list(wrong.index)
    surest = table["probability"].iloc[places].tolist()
    assert surest == sorted(surest, reverse=True)


def test_the_least_certain_have_the_smallest_margin() -> None:
    """Images are ordered by the distance of their two most probable classes."""
    predictions = random_predictions(100, 7)
    shown = np.sort(predictions.probabilities_NK[galleries.least_certain(predictions)])
    margins = (shown[:, -1] - shown[:, -2]).tolist()
    assert (margins, len(margins)) == (sorted(margins), 100)

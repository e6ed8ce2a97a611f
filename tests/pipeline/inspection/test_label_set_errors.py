"""Errors in sets of labels: planted ones are found, label by label."""

from __future__ import annotations

import numpy as np
import pandas as pd

from patchline.pipeline.inspection.label_errors import Judgement
from patchline.pipeline.inspection.label_set_errors import findings_on_label_sets
from patchline.pipeline.labels.label_sets import encoded

CLASSES = ("ant", "bee", "cow", "never")


def _judged(sets: list[list[str]], true: list[list[str]]) -> tuple[pd.DataFrame, Judgement]:
    """Return images with sets, and what a good model says about the true ones."""
    generator = np.random.default_rng(0)
    has = np.array([[name in each for name in CLASSES] for each in true])
    probabilities = np.clip(np.where(has, 0.9, 0.1) + generator.normal(0, 0.02, has.shape), 0, 1)
    wrong = has != np.array([[name in each for name in CLASSES] for each in sets])
    probabilities[wrong] = has[wrong]  # the model is sure of them
    paths = tuple(f"{number:03d}.png" for number in range(len(sets)))
    rows = pd.DataFrame({"path": paths, "label": [encoded(each) for each in sets]})
    return rows, Judgement("version 1 of farm", CLASSES, paths, probabilities, None)


def test_missing_and_wrong_labels_are_found_with_their_probabilities() -> None:
    """One set lacks a label, one has a wrong one, one both; the others are not reported."""
    true = [["ant"], ["bee"], ["ant", "bee"], ["cow"], [], ["bee", "cow"]] * 10
    sets = [list(each) for each in true]
    sets[2], sets[7], sets[15] = ["ant"], ["bee", "cow"], ["ant"]
    rows, judged = _judged(sets, true)
    (found,) = findings_on_label_sets(rows, judged)
    assert set(found.files) == {"002.png", "007.png", "015.png"}
    assert found.details["002.png"].startswith("lacks bee, whose probability is ")
    assert found.details["007.png"].startswith("has cow, whose probability is ")
    assert "lacks cow" in found.details["015.png"]
    assert "has ant" in found.details["015.png"]
    assert found.summary.startswith("3 images seem to lack a label or to have a wrong one")


def test_right_sets_are_not_reported() -> None:
    """A label that no image has is no question."""
    true = [["ant"], ["bee"], ["ant", "bee"], ["cow"], []] * 10
    assert findings_on_label_sets(*_judged(true, true)) == []

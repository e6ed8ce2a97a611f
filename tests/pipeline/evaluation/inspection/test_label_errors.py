"""Label errors: planted ones are found by a model, and images it is unsure of are not reported."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from patchline.pipeline.data.labels.label_sets import encode_labels
from patchline.pipeline.evaluation.inspection.label_errors import (
    Judgement,
    findings_on_label_sets,
    findings_on_labels,
    likely_labels,
)

CLASSES = ("ant", "bee", "cow")


def sure(labels: NDArray[np.int64], most: float) -> NDArray[np.float64]:
    """Return probabilities of a model that prefers these classes, each about as much as `most`."""
    top_N = np.clip(np.random.default_rng(0).normal(most, 0.02, len(labels)), 0, 1)
    probabilities = np.repeat((1 - top_N)[:, None] / 2, 3, axis=1)
    probabilities[np.arange(len(labels)), labels] = top_N
    return probabilities


def judged(
    labels: NDArray[np.int64], probabilities: NDArray[np.float64]
) -> tuple[pd.DataFrame, Judgement]:
    """Return a manifest, and what a model that has not seen its images says about them."""
    names = [CLASSES[label] for label in labels]
    paths = tuple(f"{name}/{row:02d}.png" for row, name in enumerate(names))
    seen_N = np.zeros(len(labels), bool)
    rows = pd.DataFrame({"path": paths, "label": names})
    return rows, Judgement("version 1 of farm", CLASSES, paths, probabilities, seen_N)


def test_planted_errors_are_found_the_surest_first() -> None:
    """Three images have a wrong label; the finding names what each of them looks like."""
    true, wrong = np.arange(60) % 3, [5, 17, 30]
    labels = true.copy()
    labels[wrong] = (true[wrong] + 1) % 3
    probabilities = sure(true, 0.9)
    probabilities[17] = np.eye(3)[true[17]]
    rows, judgement = judged(labels, probabilities)
    [found] = findings_on_labels(rows, judgement)
    assert (found.kind, found.exclude) == ("label_error", ())
    paths = [judgement.paths[row] for row in wrong]
    assert set(found.files) <= set(paths)
    assert len(found.files) >= 2  # those above the class's mean
    assert found.files[0] == paths[1]
    own, other = CLASSES[labels[17]], CLASSES[true[17]]
    assert found.details[paths[1]] == f"looks like {other} (100%), not {own} (0%)"
    assert found.summary.endswith("to version 1 of farm, which agrees with 95.0% of the labels.")


def test_an_unsure_model_reports_nothing() -> None:
    """Another class that is a little more probable, but less than usual, is no label error."""
    labels = np.arange(30) % 3
    probabilities = sure(labels, 0.9)
    probabilities[4] = [0.45, 0.40, 0.15]
    assert labels[4] == 1
    assert findings_on_labels(*judged(labels, probabilities)) == []


def test_seen_images_do_not_raise_the_bar_of_others() -> None:
    """A model is surer of images that it was trained on; errors among the others are found."""
    true = np.arange(90) % 3
    seen = np.arange(90) < 60
    probabilities = np.where(seen[:, None], sure(true, 0.98), sure(true, 0.6))
    labels, wrong = true.copy(), [61, 70, 79, 88]
    labels[wrong] = (true[wrong] + 1) % 3
    probabilities[wrong] = np.eye(3)[true[wrong]] * 0.7 + 0.1
    likely, margins = likely_labels(labels, probabilities, seen)
    assert set(np.flatnonzero(likely != labels)) == set(wrong)
    assert np.array_equal(likely[wrong], true[wrong])
    assert margins[wrong] == pytest.approx(0.7)
    assert not margins[seen].any()


def test_missing_and_wrong_labels_of_sets_are_found_with_their_probabilities() -> None:
    """One set lacks a label, one has a wrong one, one both; the others are not reported."""
    true = [["ant"], ["bee"], ["ant", "bee"], ["cow"], [], ["bee", "cow"]] * 10
    sets = [*true]
    sets[2], sets[7], sets[15] = ["ant"], ["bee", "cow"], ["ant"]
    has, said = (np.array([[name in each for name in CLASSES] for each in x]) for x in (true, sets))
    noise = np.random.default_rng(0).normal(0, 0.02, has.shape)
    probabilities = np.where(has != said, has, np.clip(np.where(has, 0.9, 0.1) + noise, 0, 1))
    paths = tuple(f"{number:03d}.png" for number in range(60))
    judgement = Judgement("version 1 of farm", CLASSES, paths, probabilities, None)
    rows = pd.DataFrame({"path": paths, "label": [encode_labels(each) for each in sets]})
    [found] = findings_on_label_sets(rows, judgement)
    assert set(found.files) == {"002.png", "007.png", "015.png"}
    assert found.details["002.png"].startswith("lacks bee, whose probability is ")
    assert found.details["007.png"].startswith("has cow, whose probability is ")
    assert "lacks cow" in found.details["015.png"]
    assert "has ant" in found.details["015.png"]
    assert found.summary.startswith("3 images seem to lack a label or to have a wrong one")
    right = rows.assign(label=[encode_labels(each) for each in true])
    assert findings_on_label_sets(right, judgement) == []

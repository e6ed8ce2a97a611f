"""Label errors: planted ones are found by a model, and images it is unsure of are not reported."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from patchline.pipeline.inspection.label_errors import Judgement, findings_on_labels, likely_labels

CLASSES = ("ant", "bee", "cow")


def sure(labels: NDArray[np.int64], most: float, seed: int = 0) -> NDArray[np.float64]:
    """Return probabilities of a model that prefers these classes, each about as much as `most`."""
    generator = np.random.default_rng(seed)
    top_N = np.clip(generator.normal(most, 0.02, len(labels)), 0, 1)
    probabilities = np.repeat((1 - top_N)[:, None] / (len(CLASSES) - 1), len(CLASSES), axis=1)
    probabilities[np.arange(len(labels)), labels] = top_N
    return probabilities


def judgement(labels: NDArray[np.int64], probabilities: NDArray[np.float64]) -> Judgement:
    """Return what a model that has not seen the images says about them."""
    return Judgement(
        model="version 1 of farm",
        classes=CLASSES,
        paths=tuple(f"{CLASSES[label]}/{row:02d}.png" for row, label in enumerate(labels)),
        probabilities_NK=probabilities,
        seen_N=np.zeros(len(labels), bool),
    )


def rows_of(judged: Judgement) -> pd.DataFrame:
    """Return a manifest of the judged images."""
    paths = list(judged.paths)
    return pd.DataFrame({"path": paths, "label": [path.split("/")[0] for path in paths]})


def test_planted_errors_are_found_the_surest_first() -> None:
    """Three images have a wrong label; the finding names what each of them looks like."""
    true = np.arange(60) % 3
    labels = true.copy()
    labels[[5, 17, 30]] = (true[[5, 17, 30]] + 1) % 3
    probabilities = sure(true, 0.9)
    probabilities[17] = [0.0, 0.0, 0.0]
    probabilities[17, true[17]] = 1.0
    judged = judgement(labels, probabilities)
    [found] = findings_on_labels(rows_of(judged), judged)
    assert found.kind == "label_error"
    assert set(found.files) <= {judged.paths[row] for row in (5, 17, 30)}
    assert len(found.files) >= 2  # those above the class's mean
    assert found.files[0] == judged.paths[17]
    own, other = CLASSES[labels[17]], CLASSES[true[17]]
    assert found.details[judged.paths[17]] == f"looks like {other} (100%), not {own} (0%)"
    assert found.exclude == ()
    assert found.summary.endswith("to version 1 of farm, which agrees with 95.0% of the labels.")


def test_an_unsure_model_reports_nothing() -> None:
    """Another class that is a little more probable, but less than usual, is no label error."""
    labels = np.arange(30) % 3
    probabilities = sure(labels, 0.9)
    probabilities[4] = [0.45, 0.40, 0.15]
    assert labels[4] == 1
    judged = judgement(labels, probabilities)
    assert findings_on_labels(rows_of(judged), judged) == []


@pytest.mark.parametrize("seed", range(5))
def test_seen_images_do_not_raise_the_bar_of_others(seed: int) -> None:
    """A model is surer of images that it was trained on; errors among the others are found."""
    generator = np.random.default_rng(seed)
    true = generator.integers(0, 3, 90)
    seen = np.arange(90) < 60
    probabilities = np.where(seen[:, None], sure(true, 0.98, seed), sure(true, 0.6, seed + 9))
    labels = true.copy()
    wrong = generator.choice(np.flatnonzero(~seen), 4, replace=False)
    labels[wrong] = (true[wrong] + 1) % 3
    probabilities[wrong] = np.eye(3)[true[wrong]] * 0.7 + 0.1
    likely, margins = likely_labels(labels, probabilities, seen)
    assert set(np.flatnonzero(likely != labels)) == set(wrong)
    assert np.array_equal(likely[wrong], true[wrong])
    assert margins[wrong] == pytest.approx(0.7)
    assert not margins[seen].any()


def test_a_class_without_images_is_never_likely() -> None:
    """What the model knows besides the classes of the data cannot be a label of the data."""
    labels = np.array([0, 1] * 10)
    probabilities = sure(labels, 0.9)
    probabilities[3] = [0.0, 0.01, 0.99]
    likely, _ = likely_labels(labels, probabilities, np.zeros(20, bool))
    assert np.array_equal(likely, labels)


def test_notes_say_what_limits_the_search() -> None:
    """Seen images, classes that the model does not have, and a model without records."""
    labels = np.arange(6) % 3
    judged = judgement(labels, sure(labels, 0.9))
    assert judged.notes() == []
    parts = {name: getattr(judged, name) for name in ("model", "classes", "paths")}
    seen = Judgement(**parts, probabilities_NK=judged.probabilities_NK,
                     seen_N=labels > 0, left_out=("dog",))  # fmt: skip
    [classes, images] = seen.notes()
    assert "dog" in classes
    assert "version 1 of farm was trained or selected on 4 of the 6 images" in images
    unknown = Judgement(**parts, probabilities_NK=judged.probabilities_NK, seen_N=None)
    [note] = unknown.notes()
    assert "it is not recorded which images version 1 of farm was trained on" in note

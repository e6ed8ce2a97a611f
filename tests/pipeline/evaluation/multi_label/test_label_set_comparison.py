"""Two multi-label models are compared by mAP on the same images, and a gate decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from patchline.pipeline.evaluation.multi_label.label_set_comparison import (
    LabelSetComparison,
    compare_label_sets,
    write_label_set_comparison,
)
from patchline.pipeline.metrics.multi_label.paired_bootstrap import Answers
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.registry.label_set_gates import label_set_gates

CLASSES = ("circle", "red", "unseen")


def _comparison(images: int, gain: float, *, seed: int = 0) -> LabelSetComparison:
    generator = np.random.default_rng(seed)
    labels = (generator.random((images, 3)) < (0.3, 0.5, 0)).astype(np.uint8)
    common = generator.normal(size=labels.shape)
    answers = []
    for skill in (1.5, 1.5 + gain):
        logits = skill * (labels - 0.5) + common + generator.normal(size=labels.shape) / 2
        scores = 1 / (1 + np.exp(-logits))
        answers.append(Answers(scores, (scores >= 0.5).astype(np.uint8)))
    return compare_label_sets(
        champion="3",
        challenger="4",
        classes=CLASSES,
        labels_NK=labels,
        answers=(answers[0], answers[1]),
        left_out={},
    )


def test_a_better_model_passes_with_a_sentence() -> None:
    """MAP of both, the difference with its interval, the p-value and its limit, and F1."""
    gate, worse = label_set_gates(PromotionConfig(), _comparison(400, 1.5))
    assert gate.name == "better_than_champion"
    assert gate.passed
    assert "on 400 images" in gate.sentence
    assert "mAP is 9" in gate.sentence
    assert "95% interval +" in gate.sentence
    assert "maximum 0.05 (F1 +" in gate.sentence
    assert worse.passed
    assert "'unseen' (0)" in worse.sentence  # too few images to check is said


@pytest.mark.parametrize(("images", "gain"), [(400, 0.0), (400, -1.0), (30, 5.0)])
def test_a_model_that_is_not_better_does_not_pass(images: int, gain: float) -> None:
    """Nor one on fewer images than promotion.min_images."""
    gate = label_set_gates(PromotionConfig(), _comparison(images, gain))[0]
    assert not gate.passed
    if images < 50:
        assert gate.value is None
        assert "fewer than promotion.min_images 50" in gate.sentence


def test_a_label_that_loses_fails_its_gate() -> None:
    """By more than promotion.max_class_drop."""
    worse = label_set_gates(PromotionConfig(), _comparison(400, -1.2))[1]
    assert worse.name == "no_class_worse"
    assert not worse.passed
    assert "has the largest loss: average precision" in worse.sentence


def test_the_page_shows_both_models_and_each_label(tmp_path: Path) -> None:
    """And it can be read back."""
    comparison = _comparison(100, 1.0)
    text = write_label_set_comparison(comparison, None, tmp_path).read_text("utf-8")
    for part in ("Challenger 4 against champion 3", "circle", "1\N{NO-BREAK SPACE}label without"):
        assert part in text
    stored = (tmp_path / "comparison.json").read_text("utf-8")
    assert LabelSetComparison.model_validate_json(stored) == comparison
    assert comparison.sentence.startswith("On 100 images")

"""Two multi-label models are compared by mAP on the same images, and a gate decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from patchline.pipeline.evaluation.comparison import ComparisonSubject
from patchline.pipeline.evaluation.comparison_page import write_comparison
from patchline.pipeline.evaluation.label_set_report import (
    LabelSetComparison,
    compare_label_sets,
)
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import ThresholdedScores
from patchline.pipeline.evaluation.promotion_decision import PromotionDecision
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.registry.promotion_gates import champion_gates

CLASSES = ("circle", "red", "unseen")


def _comparison(
    images: int,
    gain: float,
    *,
    thresholds: tuple[float, float] = (0.5, 0.5),
    group_size: int = 1,
) -> LabelSetComparison:
    generator = np.random.default_rng(0)
    labels = (generator.random((images, 3)) < (0.3, 0.5, 0)).astype(np.uint8)
    common = generator.normal(size=labels.shape)
    answers = []
    for skill, threshold in zip((1.5, 1.5 + gain), thresholds, strict=True):
        logits = skill * (labels - 0.5) + common + generator.normal(size=labels.shape) / 2
        scores = 1 / (1 + np.exp(-logits))
        answers.append(ThresholdedScores(scores, (scores >= threshold).astype(np.uint8)))
    return compare_label_sets(
        ComparisonSubject(
            champion="3",
            challenger="4",
            classes=CLASSES,
            left_out={},
            groups_N=np.arange(images) // group_size,
        ),
        [],
        labels,
        *answers,
    )


def test_a_better_model_passes_with_a_sentence() -> None:
    """MAP of both, the difference with its interval, the p-value and its limit, and F1."""
    gate, worse = champion_gates(PromotionConfig(), _comparison(400, 1.5))
    assert gate.passed
    assert worse.passed
    for words in ("on 400 images", "mAP is 9", "95% interval +", "p at most 0.05 (F1 +"):
        assert words in gate.sentence
    assert "'unseen' (0)" in worse.sentence  # too few images to check is said


def test_a_model_that_is_not_better_does_not_pass() -> None:
    """Nor does a label that loses."""
    gate, worse = champion_gates(PromotionConfig(), _comparison(400, -1.2))
    assert (gate.passed, worse.passed) == (False, False)
    assert "has the largest loss: average precision" in worse.sentence


@pytest.mark.parametrize(
    ("metric", "passes"), [("mAP", True), ("macro_f1", False), ("both", False)]
)
def test_the_metric_that_decides_is_a_setting(metric: str, passes: bool) -> None:
    """A model that ranks better, but gives far too few labels, is better by mAP alone."""
    config = PromotionConfig.model_validate({"label_set_metric": metric})
    comparison = _comparison(400, 1.5, thresholds=(0.5, 0.99))
    gate = champion_gates(config, comparison)[0]
    assert gate.passed is passes
    gains = {name: pair.difference.value for name, pair in comparison.paired.items()}
    assert gate.value == (min(gains.values()) if metric == "both" else gains[metric])
    assert champion_gates(config, _comparison(400, 1.5))[0].passed


def test_the_page_shows_both_models_and_each_label(tmp_path: Path) -> None:
    """And it can be read back."""
    comparison = _comparison(100, 1.0)
    gates = champion_gates(PromotionConfig(class_min_images=99), comparison)
    decision = PromotionDecision.model_validate(
        {"name": "shapes", "version": "4", "champion": "3", "gates": gates}
        | {"promoted": True, "reason": "better", "decided_at": "2026-01-01T00:00:00+00:00"}
    )
    assert decision.unchecked == ("no_class_worse",)
    text = write_comparison(comparison, decision, tmp_path, None).read_text("utf-8")
    words = ("label without", "no label has 99", ">not checked</")
    for part in ("Challenger 4 against champion 3", "circle", *words):
        assert part in text
    stored = (tmp_path / "comparison.json").read_text("utf-8")
    assert LabelSetComparison.model_validate_json(stored) == comparison


def test_whole_groups_are_drawn_and_counted() -> None:
    """The gate says so; least numbers of images are numbers of groups."""
    comparison = _comparison(400, 1.5, group_size=4)
    gate = champion_gates(PromotionConfig(), comparison)[0]
    assert gate.passed
    assert gate.sentence.startswith("on 400 images in 100 groups")
    assert "testing whole groups; required: a gain" in gate.sentence
    few = champion_gates(PromotionConfig(), _comparison(400, 1.5, group_size=10))
    assert [(each.passed, each.value) for each in few] == [(False, None), (None, None)]
    assert "only 40 groups of images (400 images) were" in few[0].sentence

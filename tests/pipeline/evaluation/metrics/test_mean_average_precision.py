"""The mean average precision is scikit-learn's, over the labels for which it means something."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from patchline.pipeline.evaluation.metrics.mean_average_precision import (
    average_precisions,
    mean_average_precision,
)


@pytest.mark.parametrize("decimals", [8, 0])
def test_each_label_equals_scikit_learn_with_equal_scores_too(decimals: int) -> None:
    """Rounded scores tie, and ties count together."""
    random = np.random.default_rng(decimals)
    sets_NK = (random.random((300, 7)) < random.random(7) * 0.4).astype(np.uint8)
    scores_NK = np.round(random.normal(size=(300, 7)) + sets_NK, decimals).astype(np.float32)
    columns = zip(sets_NK.T, scores_NK.T, strict=True)
    expected = [average_precision_score(has_N, scores_N) for has_N, scores_N in columns]
    np.testing.assert_allclose(average_precisions(scores_NK, sets_NK), expected, atol=1e-12)
    mean = mean_average_precision(scores_NK, sets_NK)
    macro = average_precision_score(sets_NK, scores_NK, average="macro")
    assert mean.value == pytest.approx(macro, abs=1e-12)


def test_rare_labels_decide_how_certain_the_mean_is() -> None:
    """100 positives and 1 positive are as certain together as not quite 2 of each."""
    sets_NK = np.zeros((200, 2), np.uint8)
    sets_NK[:100, 0] = sets_NK[0, 1] = 1
    scores_NK = np.random.default_rng(0).normal(size=(200, 2))
    assert mean_average_precision(scores_NK, sets_NK).positives == pytest.approx(4 / 1.01)

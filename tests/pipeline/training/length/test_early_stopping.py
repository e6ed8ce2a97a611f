"""Early stopping: after some validations without improvement, also across an interruption."""

from __future__ import annotations

import pytest

from patchline.pipeline.training.train_result import EpochRecord
from tests.pipeline.training.trained_jobs import (
    WORSE,
    Make,
    figures,
    same,
    stop,
    trained,
    weights_of,
)


@pytest.mark.usefixtures("_checkpoint_each_step")
def test_it_stops_after_validations_without_improvement(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names the best epoch, and an interrupted run stops at the same step."""
    monkeypatch.setattr(EpochRecord, "compared", WORSE)
    settings = {"early_stopping": 2}
    whole, stopped = (make(name, training=settings) for name in ("whole", "stopped"))
    result = trained(whole)
    assert (result.steps, result.best_step, result.best_epoch) == (12, 4, 1.0)
    reason = "no improvement in 2 validations since epoch 1, which is the best"
    assert result.stopped_because == reason
    assert result.sentence().startswith(f"stopped at epoch 3: {reason} (")
    stop(stopped, 10)
    resumed = trained(stopped)
    assert figures(resumed) == figures(result)
    assert resumed.stopped_because == result.stopped_because
    assert same(weights_of(stopped), weights_of(whole))

"""Early stopping: after some validations without improvement, also across an interruption."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from patchline.pipeline.training.checkpoints import checkpoint
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.train_result import EpochRecord
from patchline.pipeline.workers.event_log import EventWriter
from tests.pipeline.training.conftest import MakeJob
from tests.pipeline.training.test_loop import (
    BETTER,
    WORSE,
    _figures,
    _same,
    _Stop,
    _StoppingWriter,
    _weights,
)


def test_it_stops_after_validations_without_improvement(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names the best epoch, and an interrupted run stops at the same step."""
    monkeypatch.setattr(EpochRecord, "compared", WORSE)
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", math.inf)
    settings = {"early_stopping": 2}
    whole = make_job(tmp_path / "whole", training=settings)
    result = Training(whole, EventWriter(tmp_path / "whole" / "events.jsonl")).run()
    assert (result.steps, result.best_step, result.best_epoch) == (12, 4, 1.0)
    assert (
        result.stopped_because == "no improvement in 2 validations since epoch 1, which is the best"
    )
    assert result.sentence().startswith(
        "stopped at epoch 3: no improvement in 2 validations since epoch 1, which is the best ("
    )
    stopped = make_job(tmp_path / "stopped", training=settings)
    writer = _StoppingWriter(tmp_path / "stopped" / "events.jsonl", 10)
    with pytest.raises(_Stop):
        Training(stopped, writer).run()
    writer.close()
    resumed = Training(stopped, EventWriter(tmp_path / "stopped" / "events.jsonl")).run()
    assert _figures(resumed) == _figures(result)
    assert resumed.stopped_because == result.stopped_because
    assert _same(_weights(stopped), _weights(whole))


def test_improvement_keeps_it_going(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as validations improve, all planned steps are done."""
    monkeypatch.setattr(EpochRecord, "compared", BETTER)
    job = make_job(tmp_path, training={"early_stopping": 1})
    result = Training(job, EventWriter(tmp_path / "events.jsonl")).run()
    assert (result.steps, result.stopped_because) == (16, "all planned steps completed")
    assert result.sentence().startswith("best weights: epoch 4, validation accuracy ")

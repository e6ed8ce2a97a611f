"""Training with a batched augmentation and mixing: repeatable to the bit, however it is run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from patchline.pipeline.training.checkpoints import checkpoint
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.workers.event_log import EventWriter, read_events
from tests.pipeline.training.conftest import MakeJob

SETTINGS: dict[str, Any] = {
    "augmentation": {"name": "standard", "horizontal_flip": True, "erase": 0.5},
    "training": {"mixup": 0.4, "cutmix": 1.0},
}


class _Stop(Exception):  # noqa: N818 - stands for a kill, not for an error
    """Ends a training run in the middle of a step's report."""


class _StoppingWriter(EventWriter):
    """Raises when the seventh step has been done."""

    def progress(self, done: int, total: int, unit: str, **values: Any) -> None:
        super().progress(done, total, unit, **values)
        if done == 7:
            raise _Stop


def _train(job: TrainingJob, writer: type[EventWriter] = EventWriter) -> dict[str, torch.Tensor]:
    """Train, and return the last state of model, average and optimizer."""
    events = writer(job.folder / "events.jsonl")
    try:
        Training(job, events).run()
    finally:
        events.close()
    return load_file(job.folder / "last.safetensors")


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def expected(
    make_job: MakeJob, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    """Return the weights of an uninterrupted training without workers."""
    return _train(make_job(tmp_path_factory.mktemp("expected"), **SETTINGS))


def test_the_number_of_workers_changes_nothing(
    expected: dict[str, torch.Tensor], make_job: MakeJob, tmp_path: Path
) -> None:
    """Two data-loader workers give the same weights as none."""
    assert _same(_train(make_job(tmp_path, **SETTINGS, data={"workers": 2})), expected)


def test_a_resumed_training_ends_where_an_uninterrupted_one_does(
    expected: dict[str, torch.Tensor],
    make_job: MakeJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Training that was stopped within an epoch continues with the same images and mixes."""
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", math.inf)  # one after each step; epochs have 4
    job = make_job(tmp_path, **SETTINGS)
    with pytest.raises(_Stop):
        _train(job, _StoppingWriter)
    assert _same(_train(job), expected)
    events = read_events(job.folder / "events.jsonl")
    said = [event["message"] for event in events if event["kind"] == "warning"]
    assert said == ["resuming from step 6"]


def test_mixing_changes_the_weights(
    expected: dict[str, torch.Tensor], make_job: MakeJob, tmp_path: Path
) -> None:
    """Without MixUp and CutMix other weights come out, so the other tests see them."""
    plain = make_job(tmp_path, augmentation=SETTINGS["augmentation"])
    assert not _same(_train(plain), expected)

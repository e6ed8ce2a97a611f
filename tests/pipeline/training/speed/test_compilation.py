"""Compiling is tried where it is wanted, and never makes a training fail."""

from __future__ import annotations

import math
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from patchline.pipeline.training import validation
from patchline.pipeline.training.checkpoints import checkpoint
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.speed.compilation import is_wanted, reason_of
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.event_log import EventWriter, read_events
from tests.pipeline.training.conftest import MakeJob
from tests.pipeline.training.label_set_jobs import label_set_job

CPU, GPU = torch.device("cpu"), torch.device("cuda")
COMPILED: dict[str, Any] = {
    "training": {"compile": True, "epochs": 2},
    "model": {"depth": 1, "stochastic_depth": 0.3, "dropout": 0.1},
}


def _wanted(device: torch.device, steps: int = 10**9, **settings: Any) -> bool:
    return is_wanted(TrainingConfig.model_validate(settings), device, steps)


def test_a_long_training_on_a_gpu_is_compiled_by_default() -> None:
    """A CPU never repays it, nor does a short training; a setting decides for every device."""
    assert _wanted(GPU)
    assert not _wanted(GPU, steps=100)
    assert not _wanted(GPU, time_limit="5m")
    assert _wanted(GPU, time_limit="2h")
    assert not _wanted(GPU, stochastic_depth_ramp=0.5)
    assert not _wanted(CPU)
    assert _wanted(CPU, compile=True)
    assert not _wanted(GPU, compile=False)


def _run(job: Any) -> tuple[TrainResult, list[str]]:
    events = EventWriter(job.folder / "events.jsonl")
    result = Training(job, events).run()
    events.close()
    seen = read_events(job.folder / "events.jsonl")
    return result, [event["message"] for event in seen if event["kind"] == "warning"]


def test_a_training_that_cannot_be_compiled_runs_as_it_is(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reason is said in one line; weights and record are those of an ordinary training."""
    settings = {"training": {"epochs": 1, "compile": True}}
    plain, _ = _run(make_job(tmp_path / "plain", training={"epochs": 1}))

    def no_compiler(model: nn.Module, **_: Any) -> None:
        def fail(*_: Any) -> None:
            raise RuntimeError("no working C++ compiler")

        object.__setattr__(model, "_compiled_call_impl", fail)

    monkeypatch.setattr(nn.Module, "compile", no_compiler)
    tried, said = _run(make_job(tmp_path / "tried", **settings))
    assert "The model is not compiled: RuntimeError: no working C++ compiler." in said[0]
    assert len(said) == 1
    assert not tried.compiled
    same = [load_file(result.best / "model.safetensors") for result in (plain, tried)]
    assert all(torch.equal(same[0][name], same[1][name]) for name in same[0])


def test_a_training_on_sets_of_labels_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The images that are tried have sets of labels, too."""
    monkeypatch.setattr(nn.Module, "compile", lambda _, **__: None)  # nothing is compiled
    result, said = _run(label_set_job(tmp_path / "job", training={"epochs": 1, "compile": True}))
    assert said == []
    assert result.compiled


@pytest.mark.parametrize(
    ("error", "asks"),
    [
        (RuntimeError("No working C++ compiler found in torch._inductor.config.cpp.cxx"), True),
        (RuntimeError("Failed to find C compiler. Please specify via CC"), True),
        (ValueError("Target size (torch.Size([12])) must be the same as input size"), False),
    ],
)
def test_a_compiler_is_asked_for_only_where_there_is_none(error: Exception, *, asks: bool) -> None:
    """The words are those of torch and Triton."""
    said = reason_of(error)
    assert said.startswith(f"{type(error).__name__}: {str(error)[:30]}")
    assert ("Install a C++ compiler" in said) == asks


def test_compiled_code_is_not_kept_where_others_have_prepared_a_folder(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PyTorch loads code from its cache, whose default place every user can write to."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"patchline-{os.getuid()}").symlink_to(tmp_path)
    settings = {"training": {"epochs": 1, "compile": True}}
    result, [said] = _run(make_job(tmp_path / "tried", **settings))
    assert "is a link, which may lead anywhere" in said
    assert not result.compiled
    assert not (tmp_path / "torchinductor").exists()


def test_batches_that_do_not_fit_are_divided_before_the_first_step(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Compiling tries them: it is not the compiler that fails, and the model stays compiled."""
    sizes: list[int] = []

    def compile_with_little_memory(model: nn.Module, **_: Any) -> None:
        plain: Any = model._call_impl

        def call(images: torch.Tensor, *rest: Any) -> Any:
            if model.training:
                sizes.append(len(images))
            if len(images) > 8:
                raise torch.OutOfMemoryError
            return plain(images, *rest)

        object.__setattr__(model, "_compiled_call_impl", call)

    monkeypatch.setattr(nn.Module, "compile", compile_with_little_memory)
    changes = {"epochs": 1, "compile": True, "batch_size": 16}
    result, said = _run(make_job(tmp_path, training=changes))
    assert result.compiled
    assert result.halvings == (0,)
    assert sizes[:2] == [16, 8]
    assert max(sizes[1:]) == 8
    assert [message for message in said if "2 micro-batches" in message] == said


def test_the_averaged_weights_are_compiled_in_one_shape(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last batch of a validation is filled up, and its metrics are those of its own images."""
    changes = {"epochs": 2, "batch_size": 16}
    plain, _ = _run(make_job(tmp_path / "plain", training=changes))
    validated: list[int] = []

    def compile_as_it_is(model: nn.Module, **_: Any) -> None:
        plain_call: Any = model._call_impl

        def call(images: torch.Tensor, *rest: Any) -> Any:
            if not model.training:
                validated.append(len(images))
            return plain_call(images, *rest)

        object.__setattr__(model, "_compiled_call_impl", call)

    monkeypatch.setattr(nn.Module, "compile", compile_as_it_is)
    monkeypatch.setattr(validation, "_MOST_IMAGES", 5)
    compiled, _ = _run(make_job(tmp_path / "compiled", training={**changes, "compile": True}))
    images = plain.history[0].validation_images
    assert images % 5 != 0
    assert validated == [5] * (1 + 2 * -(-images // 5))  # one batch while it is compiled
    assert [each.validation_accuracy for each in compiled.history] == [
        each.validation_accuracy for each in plain.history
    ]
    for one, other in zip(compiled.history, plain.history, strict=True):
        assert one.validation_loss == pytest.approx(other.validation_loss, rel=1e-5)


def test_a_batch_that_is_filled_up_is_measured_as_what_it_holds(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a time limit, the measured speed decides how many images all validations have."""
    monkeypatch.setattr(validation, "_MOST_IMAGES", 5)
    monkeypatch.setattr(validation, "_MEASURED", 2)
    training = Training(make_job(tmp_path), EventWriter(tmp_path / "events.jsonl"))
    speed = partial(training.validator.speed, training.state.average.model, time.monotonic)
    assert speed()[0] == 2
    training.validator.fills_batches = True
    assert speed()[0] == 5


def test_a_ramp_of_stochastic_depth_is_not_compiled(make_job: MakeJob, tmp_path: Path) -> None:
    """A probability that changes in every step would be compiled in every step."""
    changes = {"epochs": 1, "compile": True, "stochastic_depth_ramp": 0.5}
    result, said = _run(make_job(tmp_path, training=changes))
    assert not result.compiled
    assert "training.stochastic_depth_ramp changes it in every step" in said[0]


class _Stop(Exception):  # noqa: N818 - stands for a kill, not for an error
    """Ends a training run in the middle of a step's report."""


class _StoppingWriter(EventWriter):
    """Raises when three steps have been done."""

    def progress(self, done: int, total: int, unit: str, **values: Any) -> None:
        super().progress(done, total, unit, **values)
        if done == 3:
            raise _Stop


@pytest.mark.slow
@pytest.mark.timeout(3600)  # compilers need a minute of both cores
def test_a_compiled_training_resumes_bit_for_bit(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All shapes are compiled beforehand; names of weights and checkpoints are the usual ones."""
    whole, said = _run(make_job(tmp_path / "whole", **COMPILED))
    assert whole.compiled
    assert not said
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", math.inf)  # a checkpoint after each step
    torch._dynamo.reset()
    job = make_job(tmp_path / "stopped", **COMPILED)
    with pytest.raises(_Stop):
        Training(job, _StoppingWriter(job.folder / "events.jsonl")).run()
    torch._dynamo.reset()
    resumed, said = _run(job)
    assert said == ["resuming from step 2"]
    assert resumed.compiled
    files = [result.best.parent / "last.safetensors" for result in (whole, resumed)]
    ours, theirs = (load_file(file) for file in files)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    plain = make_job(tmp_path / "plain", **{**COMPILED, "training": {"epochs": 2}})
    _run(plain)
    assert load_file(plain.folder / "last.safetensors").keys() == ours.keys()

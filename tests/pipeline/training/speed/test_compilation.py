"""Compiling is tried where it is wanted, and never makes a training fail."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from patchline.pipeline.training import validation
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.speed.compilation import is_wanted
from tests.pipeline.training.trained_jobs import (
    Make,
    said,
    same,
    stop,
    trained,
    weights_of,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda")
COMPILED: dict[str, Any] = {"compile": True, "epochs": 1}


def _wanted(device: torch.device, steps: int = 10**9, **settings: Any) -> bool:
    return is_wanted(TrainingConfig.model_validate(settings), device, steps)


def test_a_long_training_on_a_gpu_is_compiled_by_default() -> None:
    """A CPU never repays it, nor does a short training; a setting decides for every device."""
    assert not _wanted(GPU, steps=100)
    assert not _wanted(GPU, time_limit="5m")
    assert _wanted(GPU, time_limit="2h")
    assert not _wanted(CPU)
    assert _wanted(CPU, compile=True)
    assert not _wanted(GPU, compile=False)


def test_a_training_that_cannot_be_compiled_runs_as_it_is(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is said in one line; weights and record are those of an ordinary training."""
    plain = make("plain", training={"epochs": 1})
    trained(plain)

    def no_compiler(model: nn.Module, **_: Any) -> None:
        def fail(*_: Any) -> None:
            raise RuntimeError("no working C++ compiler")

        object.__setattr__(model, "_compiled_call_impl", fail)

    monkeypatch.setattr(nn.Module, "compile", no_compiler)
    tried = make("tried", training=COMPILED)
    assert not trained(tried).compiled
    [message] = said(tried)
    assert "The model is not compiled: RuntimeError: no working C++ compiler." in message
    assert same(weights_of(plain), weights_of(tried))


def test_compiled_code_is_not_kept_where_others_have_prepared_a_folder(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PyTorch loads code from its cache, whose default place every user can write to."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())  # as PyTorch sets it itself
    (tmp_path / f"patchline-{os.getuid()}").symlink_to(tmp_path)
    job = make("tried", training=COMPILED)
    assert not trained(job).compiled
    [message] = said(job)
    assert "is a link, which may lead anywhere" in message
    assert not (tmp_path / "torchinductor").exists()


def _compiled_as_it_is(
    monkeypatch: pytest.MonkeyPatch, *, training: bool, most: int = 1000
) -> list[int]:
    """Compile nothing; return where the sizes of batches come, of training or of predictions."""
    sizes: list[int] = []

    def compile_nothing(model: nn.Module, **_: Any) -> None:
        plain: Any = model._call_impl

        def call(images: torch.Tensor, *rest: Any) -> Any:
            if model.training == training:
                sizes.append(len(images))
            if len(images) > most:
                raise torch.OutOfMemoryError
            return plain(images, *rest)

        object.__setattr__(model, "_compiled_call_impl", call)

    monkeypatch.setattr(nn.Module, "compile", compile_nothing)
    return sizes


def test_batches_that_do_not_fit_are_divided_before_the_first_step(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling tries them: it is not the compiler that fails, and the model stays compiled."""
    sizes = _compiled_as_it_is(monkeypatch, training=True, most=8)
    job = make(training={**COMPILED, "batch_size": 16})
    result = trained(job)
    assert result.compiled
    assert result.halvings == (0,)
    assert sizes[:2] == [16, 8]
    assert max(sizes[1:]) == 8
    [message] = said(job)
    assert "2 micro-batches" in message


def test_the_averaged_weights_are_compiled_in_one_shape(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch of a validation is filled up, and its metrics are those of its own images."""
    plain = trained(make("plain", training={"epochs": 1}))
    validated = _compiled_as_it_is(monkeypatch, training=False)
    monkeypatch.setattr(validation, "_MOST_IMAGES", 5)
    compiled = trained(make("compiled", training=COMPILED))
    [one], [other] = compiled.history, plain.history
    assert one.validation_images % 5 != 0
    assert validated == [5] * (1 + -(-one.validation_images // 5))  # one batch while it is compiled
    assert one.validation_accuracy == other.validation_accuracy
    assert one.validation_loss == pytest.approx(other.validation_loss, rel=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("_checkpoint_each_step")
def test_a_compiled_training_resumes_bit_for_bit(make: Make) -> None:
    """Names of weights and checkpoints are the usual ones."""
    changes: dict[str, Any] = {
        "model": {"depth": 1, "stochastic_depth": 0.3, "dropout": 0.1},
        "data": {"validation_fraction": 0.35},  # three whole batches: each shape takes a minute
    }
    whole, stopped, plain = (
        make(name, **changes, training={**COMPILED, "compile": name != "plain"})
        for name in ("whole", "stopped", "plain")
    )
    assert trained(whole).compiled
    assert not said(whole)
    torch._dynamo.reset()
    stop(stopped, 2)
    torch._dynamo.reset()
    assert trained(stopped).compiled
    assert said(stopped) == ["resuming from step 1"]
    assert same(weights_of(whole), weights_of(stopped))
    trained(plain)
    assert weights_of(plain).keys() == weights_of(whole).keys()

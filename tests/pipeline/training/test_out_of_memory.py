"""Micro-batches: the gradients of the whole batch, and what happens when memory is short."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline.errors import RunError
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.out_of_memory import RanksRestart
from patchline.pipeline.training.parts import launching
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.workers.event_log import read_events
from tests.pipeline.training.trained_jobs import Make, opened


def _training(
    make: Make, name: str = "", halvings: tuple[int, ...] = (), **training: Any
) -> Training:
    return opened(make(name, training=training, record={"halvings": halvings}))


def _said(training: Training) -> list[str]:
    return [each["message"] for each in read_events(training.job.folder / "events.jsonl")]


def test_micro_batches_have_the_gradients_of_the_batch(make: Make) -> None:
    """Loss, clipped gradients and the number of correct images equal those of one pass."""
    settings: dict[str, Any] = {"class_balance": "weights", "batch_size": 10}  # parts of 2 and 3
    whole = _training(make, "whole", **settings)
    divided = _training(make, "divided", halvings=(0, 0), **settings)
    batch = next(whole.batches())
    one = whole.step.compute_gradients(batch)
    many = divided.step.compute_gradients(batch)
    assert float(many.loss) == pytest.approx(float(one.loss), abs=1e-6)
    assert float(many.norm) == pytest.approx(float(one.norm), abs=1e-6)
    assert (int(many.correct), many.images) == (int(one.correct), one.images)
    pairs = zip(divided.state.model.parameters(), whole.state.model.parameters(), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=0)


class _SmallMemory(nn.Module):
    """A model on a device with memory for a few images."""

    def __init__(self, model: nn.Module, images: int) -> None:
        super().__init__()
        self.model, self.images = model, images
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images_BCHW: torch.Tensor) -> Any:
        self.seen += 1
        if len(images_BCHW) > self.images:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return self.model(images_BCHW)


def _short_of_memory(make: Make, images: int) -> Training:
    training = _training(make)
    state = training.state
    state.model = _SmallMemory(state.model, images)
    state.average.model = _SmallMemory(state.average.model, images)
    return training


def test_a_batch_that_does_not_fit_is_divided(make: Make) -> None:
    """Halved until it fits, said once each time; the step is that of recorded halvings."""
    training = _short_of_memory(make, images=3)
    batch = next(training.batches())
    gradients = training.step.compute_gradients(batch)
    assert training.state.halvings == [0, 0]
    seen = training.state.model.get_buffer("seen")
    assert float(seen) == 4, "failed attempts leave batch statistics alone"
    _, second = _said(training)
    assert "divided into 4 micro-batches. The effective batch size is unchanged" in second
    divided = _training(make, "divided", halvings=(0, 0))
    expected = divided.step.compute_gradients(batch)
    assert torch.equal(gradients.loss, expected.loss)
    assert torch.equal(gradients.norm, expected.norm)


class _Failing(nn.Module):
    """A model whose first steps fail after the forward pass."""

    def __init__(self, model: nn.Module, errors: list[RuntimeError]) -> None:
        super().__init__()
        self.model, self.errors = model, errors
        self.earlier: list[weakref.ref[torch.Tensor]] = []
        self.alive: list[bool] = []

    def forward(self, images_BCHW: torch.Tensor) -> Any:
        self.alive = [reference() is not None for reference in self.earlier]
        logits_BK = self.model(images_BCHW)
        self.earlier.append(weakref.ref(logits_BK))
        if self.errors:
            raise self.errors.pop()
        return logits_BK


def test_what_failed_is_not_in_memory_any_more(make: Make) -> None:
    """Neither the first nor the second failed graph is alive when the batch is tried again."""
    training = _training(make)
    errors: list[RuntimeError] = [torch.OutOfMemoryError("full"), torch.OutOfMemoryError("full")]
    model = training.state.model = _Failing(training.state.model, errors)
    gc.disable()
    try:
        training.step.compute_gradients(next(training.batches()))
    finally:
        gc.enable()
    assert len(training.state.halvings) == 2
    assert model.alive[:2] == [False, False]


def test_an_operation_without_a_deterministic_kernel_is_said_once(make: Make) -> None:
    """The step is computed again with another kernel; any other error stays one."""
    training = _training(make)
    missing = "cumsum_cuda_kernel does not have a deterministic implementation, but you set it"
    model = training.state.model = _Failing(training.state.model, [RuntimeError(missing)])
    batch = next(training.batches())
    training.step.compute_gradients(batch)
    assert not training.step.kernels.insist
    [said] = _said(training)
    assert said.startswith("PyTorch's cumsum_cuda_kernel has no deterministic kernel")
    model.errors.append(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        training.step.compute_gradients(batch)


def test_of_several_ranks_all_start_again_with_smaller_parts(make: Make) -> None:
    """The others wait for these gradients, so the halving is left in a file for the next start."""
    training = _short_of_memory(make, images=3)
    two = Ranks()
    two.size = 2
    with_others = replace(training.step, ranks=two)
    training.state.step = 5
    with pytest.raises(RanksRestart):
        with_others.compute_gradients(next(training.batches()))
    again = _training(make)
    again.step.retry.resume(again.step)
    assert again.state.halvings == [5]
    [said] = _said(training)
    assert "divided into 2 micro-batches. The effective batch size is unchanged" in said
    once_more = _training(make)
    once_more.state.halvings = [5]
    once_more.step.retry.resume(once_more.step)
    assert len(_said(training)) == 1, "a checkpoint that has it is not news"


def test_two_images_that_do_not_fit_are_an_error(make: Make) -> None:
    """There is nothing left to divide, so the error says what to change."""
    training = _short_of_memory(make, images=1)
    with pytest.raises(RunError, match="out of memory even with two images"):
        training.step.compute_gradients(next(training.batches()))


def test_an_optimizer_that_does_not_fit_is_one_sentence(make: Make) -> None:
    """Dividing the batch would not help: the state of the optimizer has the size of the model."""
    training = _training(make)

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError

    training.state.optimizer.register_step_pre_hook(full)
    with pytest.raises(RunError, match="too little memory"):
        training.run()
    assert not training.state.halvings


def test_recorded_halvings_replay(make: Make) -> None:
    """The recorded config divides the batches from the same step."""
    training = opened(make(training={"epochs": 1}, record={"halvings": [2]}))
    for step, parts in ((2, 2), (0, 1)):
        training.state.step = step
        assert training.step.micro_batches == parts
    config = launching.replayable(training.config, training.run())
    assert config.record.halvings == (2,)

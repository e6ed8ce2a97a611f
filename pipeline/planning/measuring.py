"""Measure how fast candidates train, by a few real steps in a process of its own.

Shapes: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from pipeline.data.augmentation import SeededAugmentation
from pipeline.models.model_building import build_model
from pipeline.planning.facts import Speed
from pipeline.planning.measuring_job import MeasuredCandidate, Measurement, MeasuringJob
from pipeline.plugin_api import ImageSpec
from pipeline.training.device import choose_precision, make_repeatable
from pipeline.training.ema import MovingAverage
from pipeline.training.machine import choose_device, look
from pipeline.training.model_schedules import ModelSchedules
from pipeline.training.optimizer import build_optimizer
from pipeline.training.progressive_size import ProgressiveSize
from pipeline.training.step_plan import StepPlan
from pipeline.training.train_state import TrainState
from pipeline.training.train_step import TrainStep
from pipeline.workers.event_log import EventWriter

_BATCH, _BATCH_ACCELERATOR = 32, 256
_FEWEST_STEPS, _MOST_STEPS = 2, 10
_SHARE_OF_ONE = 0.3
"""Of the budget, for one candidate."""
_NEXT_IS_SLOWER = 3
"""How many times longer a step of the next candidate takes, roughly."""
_MEAN, _STD = 0.45, 0.25


def measure(job: MeasuringJob, events: EventWriter) -> Measurement:
    """Measure the candidates in their order until the budget is used; the first one always."""
    began, speeds = time.monotonic(), []
    for number, candidate in enumerate(job.candidates):
        step = _step_seconds(job, candidate)
        speeds.append(Speed(candidate=candidate.name, images_per_second=step.images / step.seconds))
        events.progress(number + 1, len(job.candidates), "candidate")
        left = job.budget_seconds - (time.monotonic() - began)
        if (_FEWEST_STEPS + 1) * _NEXT_IS_SLOWER * step.seconds > left:
            break
    return Measurement(speeds=tuple(speeds), accelerator_gib=_accelerator_gib())


class _Step(NamedTuple):
    """The mean step of a candidate."""

    images: int
    seconds: float


def _step_seconds(job: MeasuringJob, candidate: MeasuredCandidate) -> _Step:
    device = torch.device(choose_device(candidate.config.training, look()))
    batch = min(_BATCH if device.type == "cpu" else _BATCH_ACCELERATOR, job.images)
    steps = _steps(job, candidate, device, max(2, batch))
    next(steps)  # the first step warms up caches
    taken: list[float] = []
    began = time.monotonic()
    while len(taken) < _MOST_STEPS:
        taken.append(next(steps))
        used = time.monotonic() - began
        if len(taken) >= _FEWEST_STEPS and used > _SHARE_OF_ONE * job.budget_seconds:
            break
    return _Step(max(2, batch), sum(taken) / len(taken))


def _steps(
    job: MeasuringJob, candidate: MeasuredCandidate, device: torch.device, batch: int
) -> Iterator[float]:
    """Train on random images of full size, and yield the seconds of each step."""
    image = _image(candidate)
    training = candidate.config.training.model_copy(update={"initial_image_scale": 1.0})
    config = candidate.config.model_copy(update={"training": training})
    make_repeatable(config.training.threads)
    torch.manual_seed(0)
    model = build_model(config.model, image, job.num_classes).to(device).train()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    precision = choose_precision(config.training, device, parameters)
    step = TrainStep(
        config=config,
        image=image,
        num_classes=job.num_classes,
        device=device,
        precision=precision,
        size=ProgressiveSize(config.training, image, model),
        schedules=ModelSchedules(config.training, model),
    )
    state = TrainState(
        model=model,
        average=MovingAverage(model, config.training.ema_decay),
        optimizer=build_optimizer(config.optimizer, model),
        plan=StepPlan.of_steps(_MOST_STEPS + 1),
    )
    augment = SeededAugmentation(config.augmentation, image, 0)
    generator = np.random.default_rng(0)
    shape = (batch, image.height, image.width, image.channels)
    originals = generator.integers(0, 256, shape, dtype=np.uint8)
    labels_B = torch.from_numpy(generator.integers(0, job.num_classes, batch)).to(device)
    rows_B = torch.arange(batch, device=device)
    while True:
        began, epoch = time.monotonic(), state.step
        single = torch.from_numpy(augment.by_image(originals, epoch, range(batch))).to(device)
        step.compute_gradients(state, (augment.by_batch(single, epoch, rows_B), labels_B))
        step.update_weights(state, config.optimizer.learning_rate)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        yield time.monotonic() - began


def _image(candidate: MeasuredCandidate) -> ImageSpec:
    data = candidate.config.data
    channels, side = data.channels or 3, data.image_size or 32
    return ImageSpec(
        channels=channels,
        height=side,
        width=side,
        mean=(_MEAN,) * channels,
        std=(_STD,) * channels,
        resize=data.resize,
    )


def _accelerator_gib() -> float | None:
    if not torch.cuda.is_available():
        return None
    return float(torch.cuda.get_device_properties(0).total_memory / 2**30)

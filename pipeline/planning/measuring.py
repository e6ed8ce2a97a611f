"""Measure how fast candidates train, by a few real steps in a process of its own."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch

from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.planning.facts import Speed
from patchline.pipeline.planning.measuring_job import MeasuredCandidate, Measurement, MeasuringJob
from patchline.pipeline.probing.features import seconds_per_image
from patchline.pipeline.training.device import make_repeatable
from patchline.pipeline.training.machine import choose_device, detect_machine
from patchline.pipeline.training.speed.precision import MOST_SECONDS, Chooser
from patchline.pipeline.training.speed.thread_plan import (
    BUSY_CORES,
    OtherPrograms,
    measured_rates,
    numbers_of_threads,
    threads_are_set,
    trial_of,
)
from patchline.pipeline.training.speed.trial_steps import trial_steps
from patchline.pipeline.workers.event_log import EventWriter
from patchline.plugin_api import ImageSpec

_BATCH, _LARGER_BATCH, _BATCH_ACCELERATOR = 32, 128, 256
"""Images of a step; on a CPU, the larger number where there is time for it."""
_FEWEST_STEPS, _MOST_STEPS = 2, 10
_SHARE_OF_ONE = 0.3
"""Of the budget, for one candidate."""
_NEXT_IS_SLOWER = 3
"""How many times longer a step of the next candidate takes, roughly."""
_MEAN, _STD = 0.45, 0.25


def measure(job: MeasuringJob, events: EventWriter) -> Measurement:
    """Measure the candidates in their order until the budget is used; the first one always."""
    began, speeds, others = time.monotonic(), [], OtherPrograms()
    for number, candidate in enumerate(job.candidates):
        measured = _features_seconds if candidate.features_only else _step_seconds
        step = measured(job, candidate)
        if number == 0 and not candidate.features_only:
            step = _with_fewer_threads(job, candidate, step, others.cores())
        speeds.append(Speed(candidate=candidate.name, images_per_second=step.images / step.seconds))
        events.progress(number + 1, len(job.candidates), "candidate")
        left = job.budget_seconds - (time.monotonic() - began)
        of_next = _NEXT_IS_SLOWER * step.seconds * min(1.0, _BATCH / step.images)
        if (_FEWEST_STEPS + 1) * of_next > left:
            break
    return Measurement(
        speeds=tuple(speeds), busy_cores=others.cores(), accelerator_gib=_accelerator_gib()
    )


def _with_fewer_threads(
    job: MeasuringJob, candidate: MeasuredCandidate, step: _Step, busy_cores: float
) -> _Step:
    """On a busy machine, measure with fewer threads too, as training will, and keep the best."""
    training = candidate.config.training
    on_cpu = choose_device(training, detect_machine()) == "cpu"
    if busy_cores <= BUSY_CORES or not on_cpu or threads_are_set(training):
        return step
    trial = trial_of(candidate.config, _image(candidate), job.num_classes, "float32")
    seconds = _SHARE_OF_ONE * job.budget_seconds
    numbers = numbers_of_threads(torch.get_num_threads())
    rates = measured_rates(trial, numbers, step.images, seconds)
    fastest = max(rates, key=lambda number: rates[number])
    if rates[fastest] * step.seconds <= step.images:
        return step
    torch.set_num_threads(fastest)
    return _Step(step.images, step.images / rates[fastest])


class _Step(NamedTuple):
    """The mean step of a candidate."""

    images: int
    seconds: float


def _step_seconds(job: MeasuringJob, candidate: MeasuredCandidate) -> _Step:
    config, image = candidate.config, _image(candidate)
    device = torch.device(choose_device(config.training, detect_machine()))
    batch = max(2, min(_BATCH if device.type == "cpu" else _BATCH_ACCELERATOR, job.images))
    make_repeatable(config.training.threads, device)
    torch.manual_seed(0)
    model = build_model(config.model, image, job.num_classes).to(device)
    seconds = min(MOST_SECONDS, _SHARE_OF_ONE * job.budget_seconds)
    precision = Chooser(config, image, job.num_classes, model, job.workspace).choose(seconds)
    steps = trial_steps(config, image, job.num_classes, model, precision.name, batch)
    next(steps)  # the first step warms up caches
    larger = min(_LARGER_BATCH, job.images)
    affordable = _SHARE_OF_ONE * job.budget_seconds / (_FEWEST_STEPS + 1)
    if larger > batch and next(steps) * larger / batch <= affordable:
        # the update of the weights takes the same for any number of images
        batch = larger
        steps = trial_steps(config, image, job.num_classes, model, precision.name, batch)
        next(steps)
    taken: list[float] = []
    began = time.monotonic()
    while len(taken) < _MOST_STEPS:
        taken.append(next(steps))
        used = time.monotonic() - began
        if len(taken) >= _FEWEST_STEPS and used > _SHARE_OF_ONE * job.budget_seconds:
            break
    return _Step(batch, sum(taken) / len(taken))


def _features_seconds(job: MeasuringJob, candidate: MeasuredCandidate) -> _Step:
    """Measure an image's pass without gradients."""
    config, image = candidate.config, _image(candidate)
    device = torch.device(choose_device(config.training, detect_machine()))
    make_repeatable(config.training.threads, device)
    torch.manual_seed(0)
    model = build_model(config.model, image, job.num_classes).to(device).eval()
    seconds = min(MOST_SECONDS, _SHARE_OF_ONE * job.budget_seconds)
    chooser = Chooser(config, image, job.num_classes, model, job.workspace, is_frozen=True)
    precision = chooser.choose(seconds)
    images = np.zeros((_BATCH, image.height, image.width, image.channels), np.uint8)
    rows = np.arange(_BATCH, dtype=np.int64)
    return _Step(1, seconds_per_image(model, images, rows, image, device, precision.name))


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

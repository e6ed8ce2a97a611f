"""Measure how fast candidates train, by a few real steps in a process of its own.

The number of threads and the precision of the training are those that are the fastest here.

The threads of an operation wait for each other. Where other programs use the cores, one of them
waits for a core most of the time, and all others wait for it: then fewer threads are several times
faster. The number decides the last bits of the weights, so it is chosen once and recorded.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import torch
from torch import nn

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data.batches.augmentation import Pixels, SeededAugmentation
from patchline.pipeline.models.inference import PREDICTED_TOGETHER, logits_of_batch
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.models.probing.features import suitable_batch_size
from patchline.pipeline.models.probing.linear_head import use_evaluation_mode
from patchline.pipeline.models.probing.stored_rows import Rows, seconds_per_image
from patchline.pipeline.planning.draft import SMALLER, batch_of_images
from patchline.pipeline.planning.facts import Speed
from patchline.pipeline.planning.measuring_job import MeasuredCandidate, Measurement, MeasuringJob
from patchline.pipeline.planning.rules import BUSY_CORES
from patchline.pipeline.planning.tiers import OWN
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.device import make_repeatable
from patchline.pipeline.training.machine import choose_device, detect_machine
from patchline.pipeline.training.speed.precision import MOST_SECONDS, Chooser, Precision
from patchline.pipeline.training.speed.trial_steps import (
    EPOCH_ENDS,
    EpochEnd,
    TrialSettings,
    trial_epoch_end,
    trial_predictions,
    trial_steps,
)
from patchline.pipeline.workers.event_log import EventWriter
from patchline.plugin_api import ImageSpec

Trial = Callable[[int], Iterator[float]]
"""Takes a number of images; the iterator does a step with each `next` and yields its seconds."""

WORTH_CHANGING = 1.15
"""How many times faster another number has to be."""
_MOST_ROUNDS = 20


def threads_are_set(training: TrainingConfig) -> bool:
    """Return whether the user has set the number of threads."""
    return training.threads is not None or "OMP_NUM_THREADS" in os.environ


def numbers_of_threads(most: int) -> list[int]:
    """Return the numbers to compare: all threads, half of them, and so on down to one."""
    return [most >> halvings for halvings in range(most.bit_length())]


def measure_rates(
    trial: Trial,
    numbers: list[int],
    images: int,
    seconds: float,
) -> dict[int, float]:
    """Return the images per second with each number of threads; torch keeps its number.

    The numbers take turns, and the mean counts: on a busy machine, the fastest step only says that
    the other programs were waiting.

    Args:
        trial: the trial that does the steps.
        numbers: the numbers of threads to compare.
        images: number of images in a step.
        seconds: time that this should take; each number has a step at least.
    """
    before = torch.get_num_threads()
    taken = dict.fromkeys(numbers, 0.0)
    try:
        with torch.random.fork_rng():
            steps = trial(images)
            next(steps)  # warms up caches
            began, rounds = time.monotonic(), 0
            while not rounds or (rounds < _MOST_ROUNDS and time.monotonic() - began < seconds):
                for number in numbers:
                    torch.set_num_threads(number)
                    taken[number] += next(steps)
                rounds += 1
    finally:
        torch.set_num_threads(before)
    return {number: rounds * images / max(taken[number], 1e-9) for number in numbers}


class OtherPrograms:
    """How many CPU cores everything except a process and its children uses.

    Args:
        process: the process that is not counted, nor are its children; by default this one.
    """

    def __init__(self, process: psutil.Process | None = None) -> None:
        self._process = process or psutil.Process()
        self._last = self.sample()

    def cores(self) -> float:
        """Return the mean number of cores since the last call."""
        before, self._last = self._last, self.sample()
        seconds, others = (now - then for now, then in zip(self._last, before, strict=True))
        return max(0.0, others / seconds) if seconds > 0 else 0.0

    def sample(self) -> tuple[float, float]:
        """Return the time, and the CPU seconds of other programs since the machine started."""
        own = sum(map(_cpu_seconds, [self._process, *self._process.children(recursive=True)]))
        return time.monotonic(), busy_seconds() - own


def busy_seconds() -> float:
    """Return the CPU seconds of all programs since the machine started."""
    times = psutil.cpu_times()
    waiting = times.idle + getattr(times, "iowait", 0.0)
    counted_twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - waiting - counted_twice)


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it has ended
        return 0.0
    return float(times.user + times.system)


_BATCH, _LARGER_BATCH = 32, 128
"""Images of a step on a CPU; the larger number where there is time for it."""
_FEWEST_STEPS, _MOST_STEPS, _FEWEST_IMAGES = 2, 10, 8
_MOST_PAIRS = 6
"""Steps with smaller images, and as many of full size, that are compared where there is time."""
_LEAST_SECONDS = 0.5
"""On a CPU, of quick steps more are measured, because other programs slow single ones down."""
_TOGETHER_SECONDS, _MOST_TOGETHER = 0.2, 5
"""On a GPU, how long the steps take that are measured together, and how often they are."""
_SHARE_OF_ONE = 0.3
"""Of the budget, for one candidate."""
_NEXT_IS_SLOWER = 3
"""How many times longer a step of the next candidate takes, roughly."""
_WARM_UP_STEPS, _MOST_WARM_UP = 3, 30.0
"""On a GPU, steps of a candidate before those that are measured, and seconds for all of that."""
_LOADED_IMAGES, _LOADED_ROUNDS = 32, 3
"""Augmented to measure how fast one core does it; the fastest round counts."""
_LOAD_SECONDS = 0.3
"""How long other programs are observed before the number of threads is chosen."""
_FEWEST_PREDICTED, _BATCH_SECONDS = 4, 0.1
"""Images of a pass whose time is compared between numbers of threads; as many as take so long, if
these are more."""
_COMPARED_PASSES = 50
"""Images that are predicted to compare two precisions, and to measure the speed of the better."""
_VALIDATED_SHARE, _PREDICTING_IS_FASTER = 0.1, 3
"""Of the budget, for trial validations; and how many times faster than training they are, about."""
_CPU = torch.device("cpu")
_MEAN, _STD = 0.45, 0.25


def measure(job: MeasuringJob, events: EventWriter) -> Measurement:
    """Measure the candidates in their order until the budget is used; the first one always."""
    for candidate in job.candidates:
        if not candidate.features_only:  # what some augmentations import takes seconds
            SeededAugmentation(candidate.config.augmentation, _image(candidate), 0)
    began, speeds, others = time.monotonic(), [], _other_programs()
    ends = began + (math.inf if job.most_seconds is None else job.most_seconds)
    _choose_threads(job, job.candidates[0], ends)
    threads = torch.get_num_threads()
    on_cpu, used = _device(job.candidates[0]) == _CPU, 0.0
    for number, candidate in enumerate(job.candidates):
        if candidate.features_only:
            step = _features_seconds(job, candidate, ends)
        else:
            step = _step_seconds(job, candidate)
        torch.set_num_threads(threads)
        speeds.append(
            Speed(
                candidate=candidate.name,
                images_per_second=step.images / step.seconds,
                loaded_per_second=0.0 if on_cpu else measure_loading(candidate),
                validated_per_second=step.end.validated_per_second,
                epoch_end_seconds=step.end.seconds,
                smaller_step_share=step.smaller_share,
                checkpoint_seconds=step.end.checkpoint_seconds,
                precision=step.precision.name,
            )
        )
        events.progress(number + 1, len(job.candidates), "candidate")
        since = time.monotonic() - began
        if began + since > ends:
            break
        if on_cpu:
            of_next = _NEXT_IS_SLOWER * step.seconds * min(1.0, _BATCH / step.images)
            if (_FEWEST_STEPS + 1) * of_next > job.budget_seconds - since:
                break
        used += step.measured
        if not on_cpu and (used > job.budget_seconds or since > _MOST_WARM_UP):
            break
    return Measurement(
        speeds=tuple(speeds),
        threads=threads if on_cpu else None,
        busy_cores=others.cores(),
        teacher_per_second=_teacher_per_second(job),
        accelerator_gib=_accelerator_gib(),
        parameters=step.parameters,
    )


def _other_programs() -> OtherPrograms:
    """Return what other programs use: neither this run nor its servers and workers."""
    return OtherPrograms(psutil.Process(os.getppid()))


def _device(candidate: MeasuredCandidate) -> torch.device:
    return torch.device(choose_device(candidate.config.training, detect_machine()))


def _choose_threads(job: MeasuringJob, candidate: MeasuredCandidate, ends: float) -> None:
    """Use fewer threads on a busy machine if that is faster, and there is time to try it."""
    training = candidate.config.training
    device = _device(candidate)
    make_repeatable(training.threads, device)
    most = torch.get_num_threads()
    is_free = device == _CPU and not threads_are_set(training) and training.processes == 1
    if most == 1 or not is_free:
        return
    trial, images = _trial(job, candidate)
    taken = math.inf
    with torch.random.fork_rng():
        steps, began, others = trial(images), time.monotonic(), _other_programs()
        while time.monotonic() - began < _LOAD_SECONDS:
            taken = min(taken, next(steps))
    passes = 2 + len(numbers_of_threads(most))  # and at least as many to measure the speed
    if others.cores() <= BUSY_CORES or time.monotonic() + 2 * passes * taken > ends:
        return
    seconds = _SHARE_OF_ONE * job.budget_seconds
    if candidate.features_only:
        affordable = int(images * _BATCH_SECONDS / max(taken, 1e-9))
        images = max(images, min(suitable_batch_size(_image(candidate), _CPU), affordable))
    rates = measure_rates(trial, numbers_of_threads(most), images, seconds)
    fastest = max(rates, key=lambda number: rates[number])
    if rates[fastest] >= WORTH_CHANGING * rates[most]:
        torch.set_num_threads(fastest)


def _trial(job: MeasuringJob, candidate: MeasuredCandidate) -> tuple[Trial, int]:
    """Return what is timed with different numbers of threads, and how many images at first.

    Of weights whose features are measured, that is a pass without gradients. It has few images: one
    of a large model takes a second on a slow core.
    """
    config, image = candidate.config, _image(candidate)
    if not candidate.features_only:
        plain = config.model_copy(update={"augmentation": PluginChoice(name="none")})

        def steps(images: int) -> Iterator[float]:
            model = build_model(config.model, image, job.num_classes)
            return trial_steps(
                TrialSettings(plain, image, job.num_classes, "float32"), model, images
            )

        return steps, max(2, min(_BATCH, job.images))
    model = _model(job, candidate, _CPU).eval()
    return partial(trial_predictions, image, model, "float32"), _FEWEST_PREDICTED


class _Step(NamedTuple):
    """The mean step of a candidate."""

    images: int
    seconds: float
    """Infinite if the step does not fit the memory."""
    precision: Precision
    measured: float = 0.0
    """Seconds that the measured steps took."""
    parameters: int = 0
    """Number of parameters of the model, if its features were measured."""
    smaller_share: float = 0.0
    """Time of a step of smaller images, as a share of this one; 0 if it was not measured."""
    end: EpochEnd = EpochEnd(0.0, 0.0, 0.0)
    """What the end of an epoch takes; not measured for features."""


def measure_loading(candidate: MeasuredCandidate) -> float:
    """Return how many images one core augments in a second, where each is augmented alone."""
    image = _image(candidate)
    on_device = _device(candidate).type == "cuda"
    augment = SeededAugmentation(candidate.config.augmentation, image, 0, on_device=on_device)
    if not augment.changes_single_images:
        return 0.0  # whole batches are augmented, on the device
    shape = (_LOADED_IMAGES, image.height, image.width, image.channels)
    images_BHWC = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    with _one_thread_of_opencv():
        fastest = min(_seconds_of(augment, images_BHWC, epoch) for epoch in range(_LOADED_ROUNDS))
    return _LOADED_IMAGES / max(1e-6, fastest)


def _seconds_of(augment: SeededAugmentation, images_BHWC: Pixels, epoch: int) -> float:
    began = time.monotonic()
    augment.by_image(images_BHWC, epoch, range(len(images_BHWC)))
    return time.monotonic() - began


@contextmanager
def _one_thread_of_opencv() -> Iterator[None]:
    """Let OpenCV compute in one thread, as in a data-loader worker."""
    import cv2

    before = cv2.getNumThreads()
    cv2.setNumThreads(0)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def _step_seconds(job: MeasuringJob, candidate: MeasuredCandidate) -> _Step:
    """Measure training steps, with smaller batches if a GPU's memory is short.

    No step has more images than those of a plan for so many images, because a small batch takes
    longer for each of them: the update of the weights costs the same, and a GPU waits. A GPU gets
    just that batch; of several processes with a GPU each, one has a part of it. On a CPU they share
    the cores, and one that has all of them, and the whole batch, stands for all.
    """
    devices = 1 if _device(candidate) == _CPU else candidate.config.training.processes
    images = max(2, batch_of_images(job.images) // devices)
    while True:
        try:
            return _steps_of(job, candidate, images)
        except torch.OutOfMemoryError:
            images //= 2  # the traceback keeps the step's memory, so it is tried again outside
        torch.cuda.empty_cache()
        if images < _FEWEST_IMAGES:
            return _Step(1, math.inf, Precision(name=""))


def _steps_of(job: MeasuringJob, candidate: MeasuredCandidate, most_images: int) -> _Step:
    config, image = candidate.config, _image(candidate)
    device = _device(candidate)
    most = min(most_images, job.images)
    batch = max(2, min(_BATCH, most) if device == _CPU else most)
    model = _model(job, candidate, device)
    precision = _precision(job, candidate, model)
    settings = TrialSettings(config, image, job.num_classes, precision.name)

    def steps_of(images: int, scale: float = 1.0) -> Iterator[float]:
        return trial_steps(
            settings,
            model,
            images,
            together_seconds=_TOGETHER_SECONDS,
            scale=scale,
            planned=most_images,
        )

    steps = steps_of(batch)
    for _ in range(1 if device == _CPU else _WARM_UP_STEPS):
        next(steps)  # the first steps warm up caches, and load and choose kernels
    larger = min(_LARGER_BATCH, most)
    affordable = _SHARE_OF_ONE * job.budget_seconds / (_FEWEST_STEPS + 1)
    if device == _CPU and larger > batch and next(steps) * larger / batch <= affordable:
        batch = larger
        steps = steps_of(batch)
        next(steps)
    taken: list[float] = []
    began = time.monotonic()
    used, most = 0.0, _MOST_STEPS if device == _CPU else _MOST_TOGETHER
    least = _LEAST_SECONDS if device == _CPU else 0.0
    while len(taken) < most or sum(taken) < least:
        taken.append(next(steps))
        used = time.monotonic() - began
        if len(taken) >= _FEWEST_STEPS and used > _SHARE_OF_ONE * job.budget_seconds:
            break
    seconds, smaller_share = sum(taken) / len(taken), 0.0
    pairs = min(_MOST_PAIRS, int((_SHARE_OF_ONE * job.budget_seconds / seconds - 1) / 2))
    if device == _CPU and _may_begin_smaller(candidate) and pairs >= _FEWEST_STEPS:
        smaller_share = _share_of_smaller(steps, steps_of(batch, SMALLER), pairs)
    end = _epoch_end(job, settings, model, batch / seconds)
    return _Step(batch, seconds, precision, used, smaller_share=smaller_share, end=end)


def _may_begin_smaller(candidate: MeasuredCandidate) -> bool:
    """Return whether a plan may let the model begin with smaller images."""
    return candidate.name != OWN and candidate.config.model.patch_embedding.name == "whitened"


def _share_of_smaller(whole: Iterator[float], smaller: Iterator[float], pairs: int) -> float:
    """Return what steps of smaller images take, as a share of those of full size.

    The steps of small batches are hardly faster. Both take turns, because other programs slow them
    down.
    """
    next(smaller)
    taken = [(next(whole), next(smaller)) for _ in range(pairs)]
    of_whole, of_smaller = map(sum, zip(*taken, strict=True))
    return min(1.0, of_smaller / max(of_whole, 1e-9))


def _epoch_end(
    job: MeasuringJob, settings: TrialSettings, model: nn.Module, images_per_second: float
) -> EpochEnd:
    """Measure the end of an epoch, on as many images of a validation as there is time for."""
    affordable = _VALIDATED_SHARE * job.budget_seconds * _PREDICTING_IS_FASTER * images_per_second
    most = min(PREDICTED_TOGETHER, job.validation_images, int(affordable / (EPOCH_ENDS + 1)))
    with tempfile.TemporaryDirectory(dir=job.workspace, prefix=".building-") as folder:
        return trial_epoch_end(settings, model, max(_FEWEST_IMAGES, most), Path(folder))


def _features_seconds(job: MeasuringJob, candidate: MeasuredCandidate, ends: float) -> _Step:
    """Measure an image's pass without gradients, in float32 if there is no time to compare."""
    device, image = _device(candidate), _image(candidate)
    model, precision = _model(job, candidate, device).eval(), Precision(name="float32")
    each = exact = math.inf
    if ends < math.inf:
        each = exact = _seconds_per_image(model, image, device, precision.name)
    if ends == math.inf or time.monotonic() + _COMPARED_PASSES * each < ends:
        precision = _precision(job, candidate, model)
        if math.isinf(each) or precision.name != "float32":
            each = _seconds_per_image(model, image, device, precision.name)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    end = EpochEnd(1 / exact, 0.0, 0.0)  # predicted in float32
    return _Step(1, each, precision, parameters=parameters, end=end)


def _model(job: MeasuringJob, candidate: MeasuredCandidate, device: torch.device) -> nn.Module:
    """Return a model like that which is trained, with random weights."""
    torch.manual_seed(0)
    return build_model(candidate.config.model, _image(candidate), job.num_classes).to(device)


def _precision(job: MeasuringJob, candidate: MeasuredCandidate, model: nn.Module) -> Precision:
    """Measure which precision is faster, in a share of the budget."""
    chooser = Chooser(
        candidate.config,
        _image(candidate),
        job.num_classes,
        model,
        job.workspace,
        is_frozen=candidate.features_only,
        folds=candidate.config.training.folds,
        again=True,
    )
    return chooser.choose(min(MOST_SECONDS, _SHARE_OF_ONE * job.budget_seconds))


def _teacher_per_second(job: MeasuringJob) -> float:
    """Return how many images the teacher predicts in a second, in one view; 0 without one."""
    if job.teacher is None:
        return 0.0
    model, description = load_model(job.teacher)
    device = _device(job.candidates[0])
    return 1 / _seconds_per_image(model.to(device), description.image, device, "float32")


def _seconds_per_image(
    model: nn.Module, image: ImageSpec, device: torch.device, precision: str
) -> float:
    """Return how long an image takes without gradients."""

    def compute(rows: Rows) -> None:
        shape = (len(rows), image.height, image.width, image.channels)
        images_BHWC = torch.zeros(shape, dtype=torch.uint8).to(device)
        logits_of_batch(model, images_BHWC, image, precision).cpu()

    with use_evaluation_mode(model):
        return seconds_per_image(compute, np.arange(_BATCH), suitable_batch_size(image, device))


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

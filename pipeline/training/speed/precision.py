"""Choose the precision of a training by a short measurement of real steps, or of predictions.

The precision decides the weights. So it is measured once for a model on a machine and remembered in
the workspace, and every later training of that model has the same.
"""

from __future__ import annotations

import copy
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from patchline.pipeline.config import PluginChoice, RunConfig
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.config import duration_seconds
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.machine import detect_machine
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.speed.trial_steps import (
    TrialSettings,
    trial_predictions,
    trial_steps,
)
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.host.processors import this_processor
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients, StageMemory
from patchline.plugin_api import ImageSpec

FILE = "precision.json"
STAGE = "precision"
MOST_SECONDS = 2.0
_LONGEST_SECONDS, _SHARE_OF_LIMIT = 10.0, 0.005
"""Time of a measurement before a training run with a time limit, on top of the limit."""
_WORTH_CASTING = 1.15
"""How many times faster bfloat16 has to be; with less, float32 is the more exact choice."""
_NEAR = 1.1
"""Factor around that, within which more steps are measured, and an earlier choice stands."""
_FEWEST_IMAGES, _FEWEST_IMAGES_GPU, _MOST_IMAGES = 8, 64, 256
"""Numbers of images in a measured step; a GPU takes as long for fewer, in any precision, to launch
the kernels."""
_ROUNDS, _MOST_ROUNDS, _ENLARGED = 3, 12, 2
_FIRST_WITH_TENSOR_CORES = (7, 0)
"""Compute capability from which a GPU multiplies float16 several times faster than float32."""
_X86 = {"x86_64", "amd64"}


class Precision(FrozenModel):
    """The precision of a training run, and why it has that one."""

    name: str
    """float32, bfloat16 or float16."""
    reason: str = ""
    """Why it was chosen; empty if it is set."""


@dataclass(frozen=True)
class Chooser:
    """Chooses the precision of one model.

    Attributes:
        config: the run's settings, resolved against the data.
        image: the size of the images.
        num_classes: number of classes.
        model: the model on its device; it is not changed.
        workspace: the folder that remembers what was measured; None measures again.
        is_frozen: whether the model is in evaluation mode and only predicts.
        folds: number of folds, if each image is predicted by the fit without its fold.
        again: whether to measure even so; what is remembered then decides where both precisions are
            nearly worth it, so that the machine's other load does not.
    """

    config: RunConfig
    image: ImageSpec
    num_classes: int
    model: nn.Module
    workspace: Path | None
    is_frozen: bool = False
    folds: int | None = None
    again: bool = False

    @property
    def setting(self) -> str:
        """What the config says: a precision, or auto."""
        recorded = self.config.record.feature_precision if self.is_frozen else None
        return recorded or self.config.training.precision

    def choose(self, seconds: float = MOST_SECONDS) -> Precision:
        """Return the precision that is set, certain, remembered, or else faster."""
        if self.setting != "auto":
            return Precision(name=self.setting)
        device = next(self.model.parameters()).device
        half = half_precision(device)
        if self.is_frozen and half == "float16":
            reason = "features are not scaled, so they could overflow in float16"
        else:
            reason = certain_reason(device) or self._reason_of_folds()
        if reason:
            return Precision(name="float32", reason=reason)
        if self.workspace is None:
            return self._measured(half, seconds)
        memory = StageMemory(self.workspace)
        key = self._ingredients(device)
        recalled = memory.recall(STAGE, key, Precision)
        if recalled is None or self.again:
            recalled = self._measured(half, seconds, recalled.name if recalled else "")
            memory.remember(STAGE, recalled, self.workspace / STAGE, key)
        return recalled

    def _reason_of_folds(self) -> str:
        """Return why features are computed in float32 if each image is predicted by a fold."""
        if not self.is_frozen or self.folds is None:
            return ""
        return "the calibration on all folds needs the float32 features of all images"

    def _measured(self, half: str, seconds: float, earlier: str = "") -> Precision:
        plain = self.config.model_copy(update={"augmentation": PluginChoice(name="none")})

        def steps(name: str, batch: int) -> Iterator[float]:
            if self.is_frozen:
                return trial_predictions(self.image, self.model, name, batch)
            model = copy.deepcopy(self.model)
            settings = TrialSettings(plain, self.image, self.num_classes, name)
            return trial_steps(settings, model, batch, planned=most)

        most = min(_MOST_IMAGES, max(2, self.config.training.batch_size))
        device = next(self.model.parameters()).device
        fewest = fewest_images(device)
        if self.is_frozen and device.type == "cpu":  # no update, whose time is that of no image
            fewest //= 2
        with torch.random.fork_rng():
            while most > 1:
                try:
                    rates = images_per_second(steps, half, most, seconds, fewest)
                    return faster(rates, earlier)
                except torch.OutOfMemoryError:
                    most //= 2
        return Precision(name="float32", reason=f"there is not enough memory to measure {half}")

    def _ingredients(self, device: torch.device) -> Ingredients:
        """Return everything that decides which precision is faster."""
        machine = detect_machine()
        return {
            **stage_keys.settings(self.config, "model"),
            "batch": str(self.config.training.batch_size),
            "image": f"{self.image.channels}x{self.image.height}x{self.image.width}",
            "machine": f"{this_processor().name}, {machine.cpu_capability}",
            "device": machine.devices[device.type],
            "threads": str(torch.get_num_threads()),
            "torch": torch.__version__,
            **({"measured": "predictions"} if self.is_frozen else {}),
        }


def choose_for_training(
    job: TrainingJob,
    model: nn.Module,
    ranks: Ranks,
    events: EventWriter,
    *,
    is_frozen: bool = False,
) -> Precision:
    """Return the precision of a training run; a training run that resumes keeps its own.

    Args:
        job: the job of the training; a file in its folder keeps what was not set.
        model: the model with its first weights, on its device.
        ranks: the ranks that train together; the first one chooses.
        events: gets the reason.
        is_frozen: whether only features are computed.
    """
    chooser = Chooser(
        job.config,
        job.image,
        len(job.classes),
        model,
        job.workspace,
        is_frozen=is_frozen,
        folds=job.part.folds,
    )
    return ranks.from_first(Precision, lambda: _choose(chooser, job.folder / FILE, events))


def _choose(chooser: Chooser, file: Path, events: EventWriter) -> Precision:
    if chooser.setting == "auto" and file.exists():
        return Precision.from_file(file)
    limit = chooser.config.training.time_limit
    seconds = duration_seconds(limit) * _SHARE_OF_LIMIT if limit else 0.0
    chosen = chooser.choose(min(_LONGEST_SECONDS, max(MOST_SECONDS, seconds)))
    if chosen.reason:
        chosen.to_file(file)
        events.write("note", message=f"precision: {chosen.name} ({chosen.reason})")
    return chosen


def certain_reason(device: torch.device) -> str:
    """Return why float32 is certain on a device; empty if only measuring can tell."""
    if device.type == "mps":
        return "bfloat16 is untested on mps"
    if device.type == "cuda":
        return "" if half_precision(device) else "this GPU has no fast arithmetic of 16 bits"
    emulated = platform.machine().lower() in _X86 and not torch.cpu._is_avx512_bf16_supported()  # noqa: SLF001 - no public name
    return "this CPU has no bfloat16 vector instructions" if emulated else ""


def half_precision(device: torch.device) -> str:
    """Return the precision of 16 bits that a device may be faster in; empty if there is none."""
    if device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False):
        return "bfloat16"
    fast = torch.cuda.get_device_capability(device) >= _FIRST_WITH_TENSOR_CORES
    return "float16" if fast else ""


def fewest_images(device: torch.device) -> int:
    """Return the images of the smallest step that tells which precision is faster."""
    return _FEWEST_IMAGES_GPU if device.type == "cuda" else _FEWEST_IMAGES


def images_per_second(
    steps: Callable[[str, int], Iterator[float]],
    half: str,
    most: int,
    seconds: float,
    fewest: int = _FEWEST_IMAGES,
) -> dict[str, float]:
    """Measure both precisions in turn, and return the best rate of each.

    Where the rates are near the decision, more steps are measured, for as long again at most: what
    else the machine does only makes a step slower, so the fastest of many depends on it least.

    Args:
        steps: a function that yields the seconds of steps, for the name of a precision and a number
            of images.
        half: the precision to compare float32 with.
        most: maximum number of images in a step; on a slow machine, a step has fewer.
        seconds: how long this should take; a few steps of a few images are always measured.
        fewest: minimum number of images in a step, unless `most` is less.
    """
    began, batch, names = None, min(fewest, most), ("float32", half)
    while True:
        running = {name: steps(name, batch) for name in names}
        for each in running.values():
            next(each)  # the first step warms up caches
        if began is None:  # what the first steps of all load and compile says nothing
            began = time.monotonic()
        step = max(next(each) for each in running.values())
        left = seconds - (time.monotonic() - began)
        room = left / (step * len(names) * (2 + _ROUNDS))
        if batch == most or room < _ENLARGED:
            break
        # The update of the weights takes the same for any number of images, so few do not tell.
        # Each new number costs a step to warm up, so the next one is as large as the time allows.
        batch = min(most, batch * 2 ** int(math.log2(room)))
    best = dict.fromkeys(names, float("inf"))
    for done in range(_MOST_ROUNDS):
        is_late = time.monotonic() - began > 2 * seconds
        if done >= _ROUNDS and (is_late or not _is_near(best["float32"] / best[half])):
            break
        for name, each in running.items():
            best[name] = min(best[name], next(each))
    return {name: batch / taken for name, taken in best.items()}


def _is_near(ratio: float) -> bool:
    """Return whether a ratio of rates could be on the other side of the decision next time."""
    return _WORTH_CASTING / _NEAR < ratio < _WORTH_CASTING * _NEAR


def faster(rates: dict[str, float], earlier: str = "") -> Precision:
    """Return the precision of 16 bits if it is clearly faster, with both rates in the reason.

    Args:
        rates: images a second in float32 and in a precision of 16 bits.
        earlier: the choice for the same model on the same machine, which changes only if the rates
            have clearly changed; empty if there is none.
    """
    [half] = rates.keys() - {"float32"}
    ratio = rates[half] / rates["float32"]
    name = half if ratio >= _WORTH_CASTING else "float32"
    reason = (
        f"measured {rates['float32']:,.0f} images/s in float32, {rates[half]:,.0f} in {half}, "
        f"which must be at least {_WORTH_CASTING:g} times as fast"
    )
    if earlier in rates and earlier != name and _is_near(ratio):
        return Precision(name=earlier, reason=f"{reason}; so near, the earlier choice is kept")
    return Precision(name=name, reason=reason)

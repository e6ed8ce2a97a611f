"""Trial steps on random images, to measure how fast a model trains or predicts.

The end of an epoch is tried, too: its validation, and keeping the weights and a copy of the state.

Shapes: B images of a batch, H height, W width, C channels, K classes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.batches.batch_order import BatchOrder
from patchline.pipeline.data.batches.loader import (
    Batch,
    Feed,
    TrainingImages,
    training_batches,
)
from patchline.pipeline.models.inference import logits_of_batch, predict_logits
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.training.checkpoint import LAST, RestartPoint, save
from patchline.pipeline.training.config import with_changes
from patchline.pipeline.training.device import wait_for
from patchline.pipeline.training.faults import FiniteCheck
from patchline.pipeline.training.step_plan import StepPlan
from patchline.pipeline.training.train_step import TrainStep, first_step
from patchline.pipeline.training.training_data import BatchPart
from patchline.pipeline.workspace.files.sealed_files import write_tensors
from patchline.plugin_api import ImageSpec

AUGMENTATION = "augmentation"
"""Name of that part of a step in torch's profiler."""
_PLANNED_STEPS = 1_000_000
"""So many that a trial stays at the beginning, where images are small."""
_MOST_TOGETHER = 8
EPOCH_ENDS = 3
"""Number of ends of epochs that are measured; their mean counts."""
_FEWEST_IMAGES = 8
"""Size of a step whose time does not matter."""
_STORED_BATCHES, _MOST_STORED_BYTES = 4, 2**28


class TrialSettings(NamedTuple):
    """How a model is trained in a trial."""

    config: RunConfig
    """Settings of the run, resolved against the data; the augmentation is part of a step."""
    image: ImageSpec
    """The size of the images."""
    num_classes: int
    """Number of classes, K; 0 if the objective uses no labels."""
    precision: str
    """float32, bfloat16 or float16."""


def trial_steps(
    settings: TrialSettings,
    model: nn.Module,
    batch: int,
    *,
    together_seconds: float = 0.0,
    scale: float = 1.0,
    planned: int = 0,
) -> Iterator[float]:
    """Train on random images, and yield the seconds of each step.

    A step is that of the training loop, its batch included. On a GPU, whose work overlaps with what
    prepares the next step, several steps may be measured together; each `next` does them and yields
    their mean.

    Args:
        settings: how the model is trained.
        model: the model to train, on its device.
        batch: number of images in a batch.
        together_seconds: how long to let a GPU work, roughly, before it is waited for.
        scale: factor of the images' sides in the first ten steps, as at the start of a short
            training.
        planned: number of images in a planned batch, if it is larger. Its update of the weights
            takes the same, so only a share of the update is counted here. Not on a GPU, whose
            kernels run after they are launched.
    """
    trial = _Trial.of(settings, model, batch, scale)
    device = trial.device
    steps, left_out = 1, 1 - batch / max(batch, planned) if device.type == "cpu" else 0.0
    while True:
        began, updating = time.monotonic(), 0.0
        for _ in range(steps):
            updating += trial.do_step()
        wait_for(device)
        seconds = (time.monotonic() - began - left_out * updating) / steps
        yield seconds
        if device.type == "cuda":
            steps = max(1, min(_MOST_TOGETHER, round(together_seconds / max(seconds, 1e-9))))


@dataclass(frozen=True)
class _Trial:
    """A fit on random images, and a step of it."""

    step: TrainStep
    batches: Iterator[Batch]
    part: BatchPart

    @classmethod
    def of(
        cls, settings: TrialSettings, model: nn.Module, batch: int, scale: float = 1.0
    ) -> _Trial:
        """Return a fit that has not begun; see `trial_steps` for the arguments."""
        config, image, num_classes, precision = settings
        config = with_changes(config, training={"initial_image_scale": scale})
        plan = StepPlan.of_steps(_PLANNED_STEPS)
        step = first_step(
            config, image, num_classes, model.train(), precision, plan, finite=_AnyLoss
        )
        batches = _random_batches(config, image, step, num_classes, batch)
        return cls(step, batches, BatchPart.whole(batch))

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.step.device

    def do_step(self) -> float:
        """Load a batch and do a step, and return the seconds of updating the weights."""
        with torch.profiler.record_function(AUGMENTATION):
            loaded = next(self.batches)
        gradients = self.step.compute_gradients(loaded, self.part)
        began = time.monotonic()
        self.step.update(gradients)
        return time.monotonic() - began


class _AnyLoss(FiniteCheck):
    """Reads loss and norm as a training run does, and accepts any: the images are random."""

    def _check(self, step: int, learning_rate: float, values_2: torch.Tensor) -> None:  # noqa: ARG002 - see above
        values_2.tolist()


def _random_batches(
    config: RunConfig, image: ImageSpec, step: TrainStep, num_classes: int, batch: int
) -> Iterator[Batch]:
    """Yield batches of random images, loaded and augmented as those of a store.

    There are several batches of them, so that a processor does not keep them all in its caches. An
    augmentation of single images is not done ahead: data-loader workers would do it, whose number
    follows from how long it takes.
    """
    generator = np.random.default_rng(0)
    shape = (batch, image.height, image.width, image.channels)
    one_BHWC = generator.integers(0, 256, shape, dtype=np.uint8)
    rounds = max(1, min(_STORED_BATCHES, _MOST_STORED_BYTES // one_BHWC.nbytes))
    labels_N = torch.from_numpy(generator.integers(0, max(1, num_classes), rounds * batch))
    source = TrainingImages(
        store=Path(),
        rows=np.arange(rounds * batch),
        targets=step.targets_of(labels_N).numpy(),
        augmentation=config.augmentation,
        image=image,
        seed=0,
        in_memory=np.tile(one_BHWC, (rounds, 1, 1, 1)),
    )
    order = BatchOrder(source.rows, batch, source.seed, 0)
    feed = Feed.of(source, 0, step.device)
    if source.augment(on_device=feed.augments).changes_single_images:
        feed = feed._replace(ahead=0)
    return training_batches(order, source, 0, step.device, feed=feed)


class EpochEnd(NamedTuple):
    """What the end of an epoch takes besides the steps."""

    validated_per_second: float
    """Number of images that are validated in a second."""
    seconds: float
    """Seconds to keep the weights, and a copy of the state to restart from."""
    checkpoint_seconds: float
    """Seconds to write a checkpoint."""


def trial_epoch_end(
    settings: TrialSettings, model: nn.Module, images: int, folder: Path
) -> EpochEnd:
    """Do what the training loop does at the end of an epoch, and return what it takes.

    Args:
        settings: how the model is trained.
        model: the model to train, on its device.
        images: number of images to validate on.
        folder: a folder on the disk that keeps the weights; the files are left in it.
    """
    trial, image = _Trial.of(settings, model, _FEWEST_IMAGES), settings.image
    trial.do_step()  # so that the optimizer has its moments
    state, objective = trial.step.state, trial.step.objective
    average = state.average.model
    shape = (images, image.height, image.width, image.channels)
    images_NHWC = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    point: RestartPoint | None = None
    validating, keeping = 0.0, 0.0
    for turn in range(EPOCH_ENDS + 1):
        began = time.monotonic()
        predict_logits(
            average,
            images_NHWC,
            np.arange(images),
            image,
            device=trial.device,
            precision=settings.precision,
        )
        validated = time.monotonic()
        write_tensors(folder / WEIGHTS_FILE, objective.model_in(average).state_dict())
        point = RestartPoint.of(state, point)
        wait_for(trial.device)
        if turn:  # the first one takes longer
            validating += validated - began
            keeping += time.monotonic() - validated
    began = time.monotonic()
    save(folder / LAST, state)
    written = time.monotonic() - began
    return EpochEnd(EPOCH_ENDS * images / max(validating, 1e-9), keeping / EPOCH_ENDS, written)


def trial_predictions(
    image: ImageSpec, model: nn.Module, precision: str, batch: int
) -> Iterator[float]:
    """Predict random images, and yield the seconds of each batch.

    Args:
        image: the size of the images.
        model: the model on its device, in evaluation mode.
        precision: float32, bfloat16 or float16.
        batch: number of images in a batch.
    """
    device = next(model.parameters()).device
    generator = np.random.default_rng(0)
    shape = (batch, image.height, image.width, image.channels)
    images_BHWC = torch.from_numpy(generator.integers(0, 256, shape, dtype=np.uint8)).to(device)
    while True:
        began = time.monotonic()
        with torch.inference_mode():
            logits_of_batch(model, images_BHWC, image, precision)
        wait_for(device)
        yield time.monotonic() - began

"""How training starts: the initial model and step, or the final state of a finished run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.layers.last_blocks import LastBlocks
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.models.probing.linear_head import linear_head
from patchline.pipeline.training.checkpoint import FINAL, LAST, folder_of, load
from patchline.pipeline.training.config import FULL_SIZE_FROM
from patchline.pipeline.training.initial_weights.loading import as_csv, load_into, summary
from patchline.pipeline.training.initial_weights.record import load_record
from patchline.pipeline.training.job import ExtendedTraining, StoredTokens, TrainingJob
from patchline.pipeline.training.out_of_memory import OutOfMemoryRetry
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.speed.precision import choose_for_training
from patchline.pipeline.training.step_plan import StepPlan
from patchline.pipeline.training.train_state import TrainState
from patchline.pipeline.training.train_step import TrainStep, first_step
from patchline.pipeline.training.training_data import TrainingData
from patchline.pipeline.training.validation import Validator
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.sealed_files import read_tensors
from patchline.pipeline.workspace.files.stored_images import StoredImages
from patchline.plugin_api import ImageSpec

TABLE_FILE = "initial_weights.csv"
HEAD_FOLDER = "head"
"""Folder in that of a training run that fits the head first: the fitted model."""
_MOST_IMAGES = 5_000
_MOST_PIXELS = 2_000_000


def initial_model(job: TrainingJob, data: TrainingData, events: EventWriter) -> nn.Module:
    """Build the model of a job, on the CPU, with its initial weights.

    What happened to each initial weight becomes a table that is kept with the run.

    Raises:
        ConfigError: if the initial weights do not fit the model.
    """
    torch.manual_seed(job.config.seed)
    model = build_model(job.config.model, job.image, len(job.classes))
    if job.tokens is not None:
        return _last_blocks(job, job.tokens, model)
    rows, seed = data.training.rows, job.config.seed
    initialise_from_images(model, data.images, rows, job.image, seed)
    if job.initial_weights is None or _load_fitted(model, job.folder):
        return model
    record = load_record(job.initial_weights)
    done = load_into(model, record, job.initial_weights, job.classes)
    table = job.folder / TABLE_FILE
    if not table.exists():
        write_text(table, as_csv(done))
        events.write("note", message=summary(record, done))
        events.write("artifact", path=str(table), name=TABLE_FILE)
    return model


def _last_blocks(job: TrainingJob, tokens: StoredTokens, model: nn.Module) -> LastBlocks:
    """Return the last blocks of the model with its initial weights and the fitted head."""
    if job.initial_weights is not None:
        record = load_record(job.initial_weights)
        load_into(model, record, job.initial_weights, job.classes)
    head = linear_head(model, len(job.classes), job.image)
    head.load_state_dict(read_tensors(tokens.head)[0])
    return LastBlocks(model, tokens.blocks)


def _load_fitted(model: nn.Module, folder: Path) -> bool:
    """Load the model with its fitted head, if there is one, and return whether there is."""
    file = folder / HEAD_FOLDER / FINAL / WEIGHTS_FILE
    if not file.exists():
        return False
    model.load_state_dict(read_tensors(file)[0])
    return True


def initialise_from_images(
    model: nn.Module,
    images: StoredImages,
    rows: np.ndarray[Any, np.dtype[np.int64]],
    image: ImageSpec,
    seed: int,
) -> None:
    """Call `initialise_from(images_BCHW)` of every module that has it.

    Args:
        model: the model, just built.
        images: the stored images, uint8 (N, H, W, C).
        rows: the rows of the training split.
        image: how the images are normalised.
        seed: the seed that decides which images are taken: at most 5,000, and two million pixels.
    """
    wanting = [module for module in model.modules() if hasattr(module, "initialise_from")]
    if not wanting:
        return
    count = max(1, min(_MOST_IMAGES, _MOST_PIXELS // (image.height * image.width), len(rows)))
    chosen = np.sort(np.random.default_rng([seed, len(rows)]).choice(rows, count, replace=False))
    batch_BHWC = torch.from_numpy(np.array(images[chosen]))
    for module in wanting:
        initialise: Any = module.initialise_from
        initialise(normalize(batch_BHWC, image))


def initial_step(
    job: TrainingJob,
    data: TrainingData,
    plan: StepPlan,
    device: torch.device,
    ranks: Ranks,
    events: EventWriter,
) -> TrainStep:
    """Return the step of a training run that has not begun.

    Args:
        job: the job of the run, the same on all ranks.
        data: the data; its images may decide the initial weights, and the weights of the classes.
        plan: the plan of the steps.
        device: the device of this rank.
        ranks: the ranks that train together.
        events: gets what is worth knowing of the initial weights and the precision.
    """
    with ranks.first_before_others(job.folder):
        model = initial_model(job, data, events).to(device)
    precision = choose_for_training(job, model, ranks, events).name
    weights_K = None
    if job.config.training.class_balance == "weights":
        weights_K = data.class_weights_K().to(device)
        if note := data.note_on_weights():
            events.write("note", message=note)
    if ranks.is_first and (note := data.note_on_augmentation(device)):
        events.write("note", message=note)
    retry = OutOfMemoryRetry(events, job.folder)
    return first_step(
        job.config, job.image, len(job.classes), model, precision, plan,
        class_weights_K=weights_K, retry=retry, ranks=ranks,
    )  # fmt: skip


_GROUP_SETTINGS = ("weight_decay", "momentum", "nesterov", "rate_factor")
"""What a parameter group gets from the config; the rest is counted while training."""


def take_over(
    job: TrainingJob, extended: ExtendedTraining, state: TrainState, validator: Validator
) -> None:
    """Restore weights, moments and history of the finished training, with the new plan.

    The optimizer keeps the settings that it was built with, which may be new. Images that are
    full-sized already stay so, if training began with smaller ones.

    Args:
        job: the job of the new training.
        extended: the finished one.
        state: the state, just built with the plan of the whole length; it is overwritten.
        validator: the validator, which measures the best weights again if that was done on a part
            of the split.

    Raises:
        DamagedFileError: if the final checkpoint or the best weights are damaged.
    """
    settings, end = job.config.training, state.plan.last_step
    chosen = [
        {key: group[key] for key in _GROUP_SETTINGS if key in group}
        for group in state.optimizer.param_groups
    ]
    load(extended.folder / LAST, state)
    for group, values in zip(state.optimizer.param_groups, chosen, strict=True):
        group.update(values)
    progress = state.step / end
    if settings.initial_image_scale < 1.0:
        progress = max(progress, FULL_SIZE_FROM)
    state.plan.knots = StepPlan([(0, 0.0, state.step), (state.step, progress, end)]).knots
    if state.best is not None:
        best = extended.folder / FINAL
        if validator.ranks.is_first:
            copied = folder_of(job.folder, state.best.step)
            shutil.copytree(best, copied, dirs_exist_ok=True)
        of_part = state.best.compared_loss is not None
        if job.classes and (of_part or state.best.validation_images < validator.images):
            model = load_model(best)[0].to(validator.device)
            metrics = validator.metrics(model, validator.images, validator.images)
            compared = dict.fromkeys(("compared_accuracy", "compared_map", "compared_loss"))
            state.best = state.best.model_copy(update={**metrics, **compared})

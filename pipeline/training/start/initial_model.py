"""The model that training starts with: random weights, or those of an earlier training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from patchline.pipeline.models.inference import normalised
from patchline.pipeline.models.layers.last_blocks import LastBlocks
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.models.probing.linear_head import linear_head
from patchline.pipeline.training.checkpoints.best_weights import FINAL
from patchline.pipeline.training.initial_weights.loading import as_csv, load_into, summary
from patchline.pipeline.training.initial_weights.record import load_record
from patchline.pipeline.training.job import StoredTokens, TrainingJob
from patchline.pipeline.training.training_data import TrainingData
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.sealed_files import read_tensors
from patchline.pipeline.workspace.files.stored_images import StoredImages
from patchline.plugin_api import ImageSpec

TABLE_FILE = "initial_weights.csv"
HEAD_FOLDER = "head"
"""In the folder of a training run that fits the head first: the fitted model."""
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
        model: just built.
        images: the stored images, uint8 (N, H, W, C).
        rows: those of the training split.
        image: how they are normalised.
        seed: decides which images are taken: at most 5,000, and two million pixels.
    """
    wanting = [module for module in model.modules() if hasattr(module, "initialise_from")]
    if not wanting:
        return
    count = max(1, min(_MOST_IMAGES, _MOST_PIXELS // (image.height * image.width), len(rows)))
    chosen = np.sort(np.random.default_rng([seed, len(rows)]).choice(rows, count, replace=False))
    batch_BHWC = torch.from_numpy(np.array(images[chosen]))
    for module in wanting:
        initialise: Any = module.initialise_from
        initialise(normalised(batch_BHWC, image))

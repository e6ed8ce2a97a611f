"""Small jobs: beginning with kept weights, with sets of labels or a teacher, stopped, compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from patchline.pipeline import config_files
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.models.provenance import Provenance, SeenImages
from patchline.pipeline.training.__main__ import train
from patchline.pipeline.training.initial_weights.record import (
    RECORD_FILE,
    TENSORS_FILE,
    InitialWeights,
)
from patchline.pipeline.training.job import TeacherPredictions, TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.parts.launching import job_of
from patchline.pipeline.training.trained_model import description_of
from patchline.pipeline.workers.event_log import EventWriter, read_events
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.sealed_files import write_tensors
from tests.conftest import write_photos

SETTINGS: dict[str, Any] = {
    "name": "photos",
    "data": {"source": "image_folder", "image_size": 16, "validation_fraction": 0.3},
    "model": {"name": "vit", "embed_dim": 24, "depth": 2, "num_heads": 2, "mlp_dim": 32},
    "training": {
        "epochs": 4,
        "batch_size": 12,
        "threads": 1,
        "device": "cpu",
        "precision": "float32",
    },
}
FEW_PENALTIES = (0.001, 0.01)
"""Values of C that need few iterations."""
Weights = dict[str, torch.Tensor]
Make = Callable[..., TrainingJob]
"""Returns the small job in a folder of that name, with some sections of its config changed."""
MakeIn = Callable[[Path], Make]
"""Does so below a folder."""
RANDOM: dict[str, Any] = {
    "model": {"dropout": 0.2, "attention_dropout": 0.1, "stochastic_depth": 0.3},
    "training": {"initial_image_scale": 0.5, "epochs": 2},
}
"""Everything random in a fit of 8 steps."""
WORSE = property(lambda record: (0.5, float(record.step)))
"""Accuracy and loss with which the first validation stays the best."""
BETTER = property(lambda record: (0.5, -float(record.step)))
"""Accuracy and loss with which each validation is the best so far."""


class Stop(Exception):  # noqa: N818 - stands for a kill, not for an error
    """Ends a fit in the middle of a step's report."""


class StoppingWriter(EventWriter):
    """Raises when a step has been done; after step 0 never."""

    def __init__(self, job: TrainingJob, last_step: int = 0) -> None:
        super().__init__(job.folder / "events.jsonl")
        self._last_step = last_step

    def progress(self, done: int, total: int, unit: str, **values: Any) -> None:
        super().progress(done, total, unit, **values)
        if done == self._last_step:
            raise Stop


def opened(job: TrainingJob) -> Training:
    """Return what trains a job; nothing is trained yet."""
    return Training(job, StoppingWriter(job))


def trained(job: TrainingJob) -> Any:
    """Train to the end, and return the result."""
    return train(job, StoppingWriter(job))


def stop(job: TrainingJob, after: int) -> None:
    """Train until a step has been done."""
    events = StoppingWriter(job, after)
    with pytest.raises(Stop):
        train(job, events)


def weights_of(job: TrainingJob) -> Weights:
    """Return the last state of model, average and optimizer, and the best weights."""
    best = load_file(job.folder / "best" / "model.safetensors")
    last = load_file(job.folder / "last.safetensors")
    return last | {f"best.{name}": tensor for name, tensor in best.items()}


def same(one: Weights, other: Weights) -> bool:
    """Compare every bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def figures(result: Any) -> list[dict[str, Any]]:
    """Return the history without what depends on the clock."""
    return [record.model_dump(exclude={"images_per_second"}) for record in result.history]


def events_of(job: TrainingJob, kind: str) -> list[dict[str, Any]]:
    """Return the events of a fit of one kind."""
    found = read_events(job.folder / "events.jsonl")
    return [event for event in found if event["kind"] == kind]


def said(job: TrainingJob, kind: str = "warning") -> list[str]:
    """Return the messages of one kind."""
    return [event["message"] for event in events_of(job, kind)]


def keep_weights(
    folder: Path, tensors: Weights, metadata: dict[str, str] | None = None, **changes: Any
) -> Path:
    """Keep initial weights in a folder, as the workspace does, and return it."""
    settings = {
        "reference": "/x/some.safetensors",
        "kind": "file",
        "sha256": "0" * 64,
        "layout": "some ViT",
        "settings": {},
        "channels": 3,
        "image_size": 16,
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
    }
    found = InitialWeights.model_validate({**settings, **changes})
    write_tensors(folder / TENSORS_FILE, tensors, metadata or {})
    write_text(folder / RECORD_FILE, found.model_dump_json())
    return folder


def with_weights(job: TrainingJob, *, blind: bool = False) -> TrainingJob:
    """Return the job with initial weights: a random network of another number of classes.

    A blind one has the same features for every image. They are kept beside the folder of the job.
    """
    folder = job.folder.parent
    torch.manual_seed(7)
    model = build_model(job.config.model, job.image, 5)
    if blind:
        model.get_parameter("patch_embedding.projection.weight").data.zero_()
    kept = keep_weights(folder / "weights", model.state_dict())
    return job.model_copy(update={"workspace": folder, "initial_weights": kept})


def from_weights(make: Make, name: str, *, blind: bool = False, **changes: Any) -> TrainingJob:
    """Return a job that begins with kept weights; by default, it trains the head alone."""
    own = {"model": {"init": "x.safetensors"}, "training": {"trainable": "head"}}
    return with_weights(make(name, **config_files.merge_settings(own, changes)), blind=blind)


LABELS = ("bright", "left", "top")


def label_set_job(folder: Path, *, images: int = 90, **changes: Any) -> TrainingJob:
    """Return a job on pictures with sets of three labels.

    They have a bar on the left, one at the top, a bright ground, or any of these. Pictures,
    manifest and store lie beside the folder of the job.
    """
    workspace, sets = folder.parent, dict[str, str]()
    for number in range(images):
        random = np.random.default_rng(number)
        has = {label: random.random() < 0.4 for label in LABELS}
        ground = 170 if has["bright"] else 70
        pixels_HWC = random.integers(ground - 30, ground + 30, (16, 16, 3)).astype(np.uint8)
        if has["left"]:
            pixels_HWC[:, :5] = 250
        if has["top"]:
            pixels_HWC[:5] = 5
        path = f"{'odd' if number % 2 else 'even'}/{number:03d}.png"
        (workspace / "pictures" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels_HWC).save(workspace / "pictures" / path)
        sets[path] = label_sets.encode_labels([label for label in LABELS if has[label]])
    own = {"data": {"path": str(workspace / "pictures")}, "augmentation": {"name": "none"}}
    settings = config_files.merge_settings(config_files.merge_settings(SETTINGS, own), changes)
    config = config_files.validate_config(settings)
    data = ingestion.ingest(config, workspace)
    table = manifests.load(data.manifest_file)
    table["label"] = [sets[path] for path in table["path"]]
    file = workspace / "sets.parquet"
    manifests.save(table, file)
    data = data.model_copy(update={"manifest_file": file, "classes": LABELS, "task": "multi_label"})
    config = ingestion.resolve(config, data)
    prepared = ingestion.prepare(config, data, workspace)
    return job_of(config, data, prepared, folder, "no run")


MAE: dict[str, Any] = {
    "objective": {"name": "mae", "decoder_depth": 1},
    "training": {"epochs": 2},
    "model": {"patch_embedding": {"patch_size": 4}},
}
FURTHER = 24
FAVOURITE = 2
"""The class that the teacher sees in every image."""


def unlabelled(folder: Path) -> Path:
    """Return a folder of 24 photos of another class than those of other jobs."""
    root = write_photos(folder / "more", classes=4, images=FURTHER, side=16)
    return root / "falling"


def taught(make: Make, folder: Path, **changes: Any) -> TrainingJob:
    """Return a small job with a teacher that sees its favourite class everywhere."""
    settings = {"teacher": "photos/1", **changes.pop("training", {})}
    data = {"unlabelled": str(unlabelled(folder))}
    job = make("run", data=data, training=settings, **changes)
    rows = manifests.usable(manifests.load(job.manifest_file))
    count = int((rows["split"] == "train").sum()) + FURTHER
    logits = np.tile(np.array([0.0, 0.0, 4.0], np.float32), (count, 2))
    np.save(folder / "logits.npy", logits)
    plain = job.model_copy(update={"unlabelled": None, "folder": folder / "plain"})
    seen = SeenImages.of(rows[rows["split"] == "test"], rows.iloc[:0])
    model = opened(plain).state.model
    save_model(folder / "teacher", model, description_of(job), Provenance(seen))
    teacher = TeacherPredictions(
        file=folder / "logits.npy",
        splits=("train",),
        weights=folder / "teacher" / WEIGHTS_FILE,
        name="photos/1",
    )
    return job.model_copy(update={"teacher": teacher})

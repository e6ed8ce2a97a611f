"""A training job on small pictures with sets of labels, in a manifest that is written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from patchline.pipeline import config_files
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.labels import label_sets
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.parts.launching import job_of

LABELS = ("bright", "left", "top")
SETTINGS: dict[str, Any] = {
    "name": "stripes",
    "data": {"source": "image_folder", "image_size": 16, "validation_fraction": 0.3},
    "model": {"name": "vit", "embed_dim": 24, "depth": 2, "num_heads": 2, "mlp_dim": 32},
    "augmentation": {"name": "none"},
    "training": {
        "epochs": 3,
        "batch_size": 12,
        "threads": 1,
        "device": "cpu",
        "precision": "float32",
    },
}


def _pictures(folder: Path, images: int) -> dict[str, list[str]]:
    """Write pictures with a bar on the left, one at the top, a bright ground, and any of these."""
    labels: dict[str, list[str]] = {}
    for number in range(images):
        random = np.random.default_rng(number)
        has = {label: bool(random.random() < 0.4) for label in LABELS}
        ground = 170 if has["bright"] else 70
        pixels_HWC = random.integers(ground - 30, ground + 30, (16, 16, 3)).astype(np.uint8)
        if has["left"]:
            pixels_HWC[:, :5] = 250
        if has["top"]:
            pixels_HWC[:5] = 5
        path = f"{'odd' if number % 2 else 'even'}/{number:03d}.png"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels_HWC).save(folder / path)
        labels[path] = [label for label in LABELS if has[label]]
    return labels


def label_set_job(folder: Path, *, images: int = 90, **changes: Any) -> TrainingJob:
    """Return a job on pictures with sets of three labels.

    Args:
        folder: of the job; pictures, manifest and store lie beside it.
        images: number of pictures.
        changes: sections of the config that differ.
    """
    pictures, workspace = folder.parent / f"pictures{images}", folder.parent
    sets = _pictures(pictures, images)
    settings = config_files.merged(SETTINGS, {"data": {"path": str(pictures)}})
    config = config_files.validated(config_files.merged(settings, changes))
    data = ingestion.ingest(config, workspace)
    table = manifests.load(data.manifest_file)
    table["label"] = [label_sets.encoded(sets[path]) for path in table["path"]]
    file = workspace / f"sets{images}.parquet"
    manifests.save(table, file)
    data = data.model_copy(update={"manifest_file": file, "classes": LABELS, "task": "multi_label"})
    config = ingestion.resolve(config, data)
    prepared = ingestion.prepare(config, data, workspace)
    return job_of(config, data, prepared, folder, "no run")

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
from tests.pipeline.training.trained_jobs import SETTINGS

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
        sets[path] = label_sets.encoded([label for label in LABELS if has[label]])
    own = {"data": {"path": str(workspace / "pictures")}, "augmentation": {"name": "none"}}
    settings = config_files.merged(config_files.merged(SETTINGS, own), changes)
    config = config_files.validated(settings)
    data = ingestion.ingest(config, workspace)
    table = manifests.load(data.manifest_file)
    table["label"] = [sets[path] for path in table["path"]]
    file = workspace / "sets.parquet"
    manifests.save(table, file)
    data = data.model_copy(update={"manifest_file": file, "classes": LABELS, "task": "multi_label"})
    config = ingestion.resolve(config, data)
    prepared = ingestion.prepare(config, data, workspace)
    return job_of(config, data, prepared, folder, "no run")

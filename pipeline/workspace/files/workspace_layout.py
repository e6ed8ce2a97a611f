"""What lies where in a workspace: the names of folders and files that several rooms read."""

from __future__ import annotations

STORES, FEATURES, PREDICTIONS, RUNS = "prepared", "features", "teacher_predictions", "runs"
"""Folders of a workspace: decoded images, features of frozen models, what teachers have predicted,
and what each run wrote."""
REQUEST_FILE = "request.json"
"""In a run's folder: what is needed to resume it."""
FEATURES_FILE = "features.json"
"""In the folder of a training run: which features it has used."""
LAST_CHECKPOINT, PREVIOUS_CHECKPOINT = "last.safetensors", "previous.safetensors"
PROGRESS = "progress"
"""Key of a checkpoint's metadata that has the `step`."""
LAST_WEIGHTS = "last_weights"
"""Folder in that of a training run: the weights that are averaged at its end."""

"""What the training process is given."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import RunConfig
from pipeline.plugin_api import ImageSpec
from pipeline.section import Section


class TrainingJob(Section):
    """Everything that decides the weights, and where they go."""

    config: RunConfig
    """Resolved: nothing in it depends on the data any more."""
    manifest_file: Path
    store: Path
    image: ImageSpec
    classes: tuple[str, ...]
    data_fingerprint: str
    run_id: str
    folder: Path
    """Checkpoints and pictures go here."""

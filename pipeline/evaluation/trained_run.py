"""A finished training together with what it was made from: what the later stages start from."""

from __future__ import annotations

from dataclasses import dataclass

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients, result_files


@dataclass(frozen=True)
class TrainedRun:
    """The settings, the images and the weights of a run."""

    config: RunConfig
    """The resolved settings."""
    data: IngestedData
    prepared: PreparedData
    trained: TrainResult

    @property
    def ingredients(self) -> Ingredients:
        """Everything that determines the model's predictions: its files, images and plugins."""
        files = {file.name: digest_of(file).sha256 for file in result_files(self.trained.best)}
        return {
            "data": self.data.fingerprint,
            "images": repr(self.prepared.image),
            **{f"trained {name}": sha256 for name, sha256 in files.items()},
            "device": self.trained.device,
            **stage_keys.software(self.config, "model", "patch_embedding"),
        }

"""The initial weights of a run, and the settings that follow them."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import SeenBefore
from patchline.pipeline.data.seen_images import count_seen_images
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.initial_weights import finding, recipe, settings
from patchline.pipeline.training.initial_weights.record import (
    InitialWeights,
    stored_provenance,
    weights_folder,
)
from patchline.pipeline.workspace.tracking.tracked_run import INITIAL_RUN_TAG, LICENSE_TAG

_TRAINED = {
    "all": "all weights",
    "head": "the head alone",
    "head_then_all": "the head, then all weights",
    "last_blocks": "the head, then the last blocks",
}
REFERENCE_TAG = "patchline.initial_weights"


class StartingPoint(FrozenModel):
    """The settings of a run that starts from initial weights."""

    config: RunConfig
    weights: InitialWeights | None
    """None if the run's own model has no champion yet."""
    seen_before: SeenBefore = SeenBefore()
    """What the weights have seen of the run's images."""

    def notes(self) -> list[str]:
        """Return sentences for the user: what was found, and what was assumed."""
        weights = self.weights
        if weights is None:
            return ["the model has no champion yet: training starts from random weights"]
        trainable = self.config.training.trainable
        trained = f"; training {_TRAINED[trainable]}" if trainable else ""  # a plan decides later
        size = f"{weights.image_size}x{weights.image_size} pixels"
        return [
            f"initial weights: {weights.origin} ({weights.layout}, {size}){trained}",
            *weights.notes,
        ]

    def tags(self) -> dict[str, str]:
        """Return tags of the run that name its initial weights."""
        if self.weights is None:
            return {}
        tags = {REFERENCE_TAG: f"{self.weights.origin} ({self.weights.layout})"}
        if self.weights.license:
            tags[LICENSE_TAG] = self.weights.license
        return {**tags, INITIAL_RUN_TAG: self.weights.run_id} if self.weights.run_id else tags


def check_published(config: RunConfig, workspace: Path) -> None:
    """Find a file of weights or published ones, so that unsuitable ones fail before data is read.

    A version of a model or a run is found later, once the servers answer.

    Raises:
        ConfigError: if there are no such weights, or a setting contradicts them.
    """
    if config.model.init and recipe.is_published(config.model.init):
        starting_point(config, "", workspace)


def starting_point(
    config: RunConfig,
    data_name: str,
    workspace: Path,
    manifest_file: Path | None = None,
    classes: tuple[str, ...] | None = None,
) -> StartingPoint:
    """Find the initial weights that a config names, and return the config that follows them.

    Args:
        config: not resolved, with `model.init`.
        data_name: the name of the run's model, unless the config names it.
        workspace: the folder `.patchline`, where the weights are kept.
        manifest_file: of the run; its images that the weights have seen are counted.
        classes: of the run; for other classes than those of the weights, a tanh head is replaced.

    Raises:
        ConfigError: if there are no such weights, or a setting contradicts them.
    """
    model = config.model
    name = config.name or data_name
    heads = model.settings.get("num_heads")
    weights = finding.find(
        str(model.init),
        workspace,
        name,
        sha256=config.record.init_sha256,
        num_heads=heads,
        download=model.download,
    )
    if weights is None:
        return StartingPoint(config=settings.without_initial_weights(config), weights=None)
    provenance = stored_provenance(weights_folder(workspace, weights.sha256))
    seen_images = SeenBefore(provenance=provenance.summary)
    if manifest_file:
        seen_images = count_seen_images(manifest_file, provenance)
    follows = settings.with_initial_weights(config, weights, classes)
    settings.check_divisible(follows, weights)
    return StartingPoint(
        config=follows,
        weights=weights,
        seen_before=seen_images,
    )

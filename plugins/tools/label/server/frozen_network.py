"""A network with weights from a file, for the features of images.

Shapes: N images, H, W and C of an image, D features.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from patchline.pipeline import config_files
from patchline.pipeline.errors import DataError
from patchline.pipeline.models.inference import logits_of_batch
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.probing.linear_head import evaluating, linear_head
from patchline.pipeline.plugin_system.plugin_settings import resolve_settings
from patchline.pipeline.training.initial_weights.loading import load_into
from patchline.pipeline.training.initial_weights.record import InitialWeights, weights_folder
from patchline.pipeline.training.initial_weights.starting_point import starting_point
from patchline.plugin_api import DataTraits, ImageSpec

Array = np.ndarray[Any, Any]
_CLASSES = 2
"""Of a head that nobody uses."""


class FrozenNetwork(NamedTuple):
    """A network, and what its images are like."""

    model: nn.Module
    image: ImageSpec
    digest: str
    """Of the weights, and of the size of the images."""

    @classmethod
    def of(cls, reference: str, workspace: Path) -> FrozenNetwork:
        """Build the network that a run with this `model.init` starts from.

        Raises:
            DataError: if the weights do not say what their images are like.
        """
        config = config_files.requested(
            None, preset_name="none", flags={"model": {"init": reference}}
        )
        start = starting_point(config, "labelling", workspace.resolve())
        weights, data = start.weights, start.config.data
        if not isinstance(weights, InitialWeights) or not data.image_size:
            raise DataError(f"{reference} does not say what its images are like.")
        channels = data.channels or 3
        traits = DataTraits(
            channels, data.image_size, data.image_size, _CLASSES, mirror_symmetric=True
        )
        choice = resolve_settings(start.config, traits).model
        image = ImageSpec(
            channels=channels,
            height=data.image_size,
            width=data.image_size,
            mean=data.mean or (),
            std=data.std or (),
            resize="crop",
        )
        model = build_model(choice, image, _CLASSES)
        load_into(model, weights, weights_folder(workspace.resolve(), weights.sha256), ())
        return cls(model.eval(), image, f"{weights.sha256[:32]}-{data.image_size}")

    def features(self, pixels_NHWC: Array) -> Array:
        """Return the features (N, D) of decoded images: what the network's head gets."""
        given: list[torch.Tensor] = []
        head = linear_head(self.model, _CLASSES)
        hook = head.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
        try:
            with evaluating(self.model):
                logits_of_batch(self.model, torch.from_numpy(pixels_NHWC), self.image, "float32")
        finally:
            hook.remove()
        return given[0].float().numpy()

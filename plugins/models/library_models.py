"""Models of another library as model plugins.

Shapes: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from patchline.plugin_api import ConfigError


class LibraryModel(nn.Module):
    """A model of another library: `images_BCHW -> logits_BK`.

    Args:
        network: the model.
        repeat_grey: whether the model takes RGB alone, so that greyscale is repeated as RGB.
    """

    def __init__(self, network: nn.Module, *, repeat_grey: bool = False) -> None:
        super().__init__()
        self.network = network
        self.repeat_grey = repeat_grey

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of normalised images."""
        if self.repeat_grey:
            images_BCHW = images_BCHW.expand(-1, 3, -1, -1)
        logits_BK: torch.Tensor = self.network(images_BCHW)
        return logits_BK


def check_by_trial(
    build: Callable[[], nn.Module], what: str, shape_CHW: tuple[int, int, int]
) -> None:
    """Build a model and classify one image, on torch's meta device.

    A model that needs real numbers while it is built is built with memory for its weights.

    Raises:
        ConfigError: if either fails, with the library's own reason.
    """
    _, height, width = shape_CHW
    try:
        _classify(build, shape_CHW)
    except Exception as error:  # libraries document no class for this
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"{what} cannot be built for {height}x{width} images: {reason}. Choose another "
            "model.architecture, or change its settings or data.image_size."
        ) from error


def _classify(build: Callable[[], nn.Module], shape_CHW: tuple[int, int, int]) -> None:
    try:
        with torch.device("meta"), torch.no_grad():
            build().eval()(torch.zeros(1, *shape_CHW))
    except NotImplementedError:  # it computes with real numbers
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            build().eval()(torch.zeros(1, *shape_CHW))

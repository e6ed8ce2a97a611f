"""Try a model of another library on images of one size."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from patchline.plugin_api import ConfigError


def check_by_trial(
    build: Callable[[], nn.Module], what: str, shape_CHW: tuple[int, int, int]
) -> None:
    """Build the model and classify one image, on torch's meta device.

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

"""Try a model of another library on images of one size, without allocating its weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from pipeline.plugin_api import ConfigError


def check_by_trial(
    build: Callable[[], nn.Module], what: str, shape_CHW: tuple[int, int, int]
) -> None:
    """Build the model on torch's meta device and classify one image.

    Raises:
        ConfigError: if either fails, with the library's own reason.
    """
    _, height, width = shape_CHW
    try:
        with torch.device("meta"), torch.no_grad():
            build().eval()(torch.zeros(1, *shape_CHW))
    except NotImplementedError:
        return  # a library may need real numbers while it builds; training will tell
    except Exception as error:  # libraries document no class for this
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"{what} cannot be built for {height}x{width} images: {reason}. Choose another "
            "model.architecture, or change its settings or data.image_size."
        ) from error

"""What the server's page shows of a prediction: the image as the network takes it, each block.

The page sends the image that it got back with some patches covered, so that it only offers an image
that the package would read again as it is.

Shapes: B images, H, W and C of an image, L blocks, K classes; h, w the grid of patches.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from patchline.pipeline.packaging.packaged_model import PackagedModel

_READ = 3
"""Classes that are listed after each block."""
_COLOURS = {1: cv2.COLOR_GRAY2BGR, 3: cv2.COLOR_RGB2BGR}
"""By number of channels; images of other numbers have no picture."""


def inside_views(
    package: PackagedModel, pixels: Sequence[np.ndarray[Any, Any]]
) -> list[dict[str, Any]]:
    """Return for each decoded image (H, W, C) what its prediction looks like inside.

    A view has `seen`, the image as a `data:` address, or None if it cannot be shown as it is; and
    `blocks`, for each block its `attention` to the patches (h rows of w numbers) and the most
    probable classes of its `reading`, each None where the package does not have it.
    """
    if not pixels:
        return []
    names = [name for name in ("attention", "readings") if name in package.output_names]
    found = package.named_outputs(np.stack(pixels), names) if names else []
    outputs = dict(zip(names, found, strict=True))
    return [
        {
            "seen": _picture(package, image_HWC),
            "blocks": _blocks(package, {name: values[row] for name, values in outputs.items()}),
        }
        for row, image_HWC in enumerate(pixels)
    ]


def _blocks(package: PackagedModel, of_image: dict[str, Any]) -> list[dict[str, Any]]:
    attention_Lhw, readings_LK = of_image.get("attention"), of_image.get("readings")
    count = max((len(values) for values in of_image.values()), default=0)
    return [
        {
            "attention": None if attention_Lhw is None else attention_Lhw[block].tolist(),
            "reading": None if readings_LK is None else package.ranked(readings_LK[block], _READ),
        }
        for block in range(count)
    ]


def _picture(package: PackagedModel, image_HWC: np.ndarray[Any, Any]) -> str | None:
    colours = _COLOURS.get(image_HWC.shape[2])
    if colours is None or not package.mapping.is_plain:
        return None
    written, file = cv2.imencode(".png", cv2.cvtColor(np.ascontiguousarray(image_HWC), colours))
    encoded = base64.b64encode(file.tobytes()).decode()
    return f"data:image/png;base64,{encoded}" if written else None

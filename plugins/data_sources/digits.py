"""1,797 scanned handwritten digits, 8x8 pixels, that ship with scikit-learn.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from patchline.plugin_api import (
    DataError,
    DataSourcePlugin,
    ImageListing,
    ListedImage,
    PluginConfig,
    SourceContext,
)

_BRIGHTEST = 16  # the scans count dark pixels in 4x4 fields, 0 to 16


class DigitsConfig(PluginConfig):
    """The digits have no settings."""


class Digits:
    """Write the digits as PNG files, once, and list them."""

    def __init__(self, _config: DigitsConfig, context: SourceContext) -> None:
        if context.path:
            raise DataError(
                f"data.path is {context.path}, but the source digits reads no path. Set "
                "data.source to image_folder, or leave data.path out."
            )
        self.root = context.work_dir

    def list_images(self) -> ImageListing:
        """Return the 1,797 digits, labelled 0 to 9."""
        from sklearn.datasets import load_digits

        data = load_digits()
        images: list[ListedImage] = []
        for index, (pixels, label) in enumerate(zip(data.images, data.target, strict=True)):
            relative = f"{label}/{index:04d}.png"
            _write_once(self.root / relative, pixels)
            images.append(ListedImage(path=relative, label=str(label)))
        return ImageListing(name="digits", root=self.root, images=images, mirror_symmetric=False)


def _write_once(file: Path, pixels: object) -> None:
    import numpy as np
    from PIL import Image

    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    scaled = np.round(np.asarray(pixels) * (255 / _BRIGHTEST)).astype(np.uint8)
    temporary = file.with_name(
        f".{file.stem}.{uuid.uuid4().hex[:8]}.part"
    )  # runs may begin at once
    Image.fromarray(scaled).save(temporary, format="PNG")
    temporary.replace(file)


plugin = DataSourcePlugin(
    summary="1,797 handwritten digits of 8x8 pixels that ship with scikit-learn",
    paper="Alpaydin and Kaynak 1998",
    config_class=DigitsConfig,
    build=Digits,
)

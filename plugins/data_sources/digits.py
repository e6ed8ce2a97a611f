"""1,797 scanned handwritten digits, 8x8 pixels, that ship with scikit-learn.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from patchline.plugin_api import (
    DataSourcePlugin,
    ImageListing,
    ListedImage,
    PluginConfig,
    SourceContext,
)
from patchline.plugins.data_sources.source_files import refuse_path, write_at_once

_BRIGHTEST = 16  # the scans count dark pixels in 4x4 fields, 0 to 16


class DigitsConfig(PluginConfig):
    """The digits have no settings."""


class Digits:
    """Write the digits as PNG files, once, and list them."""

    def __init__(self, _config: DigitsConfig, context: SourceContext) -> None:
        refuse_path(context.path, "digits")
        self.root = context.work_dir

    def list_images(self) -> ImageListing:
        """Return the 1,797 digits, labelled 0 to 9."""
        images: list[ListedImage] = []
        for index, (pixels, label) in enumerate(zip(*_read_digits(), strict=True)):
            relative = f"{label}/{index:04d}.png"
            _write_once(self.root / relative, pixels)
            images.append(ListedImage(path=relative, label=str(label)))
        return ImageListing(name="digits", root=self.root, images=images, mirror_symmetric=False)


def _read_digits() -> tuple[Any, Any]:
    """Return the scans (N, 8, 8) and their labels (N,), as `sklearn.datasets.load_digits` does.

    Reading the file takes a tenth of the time that importing scikit-learn does.
    """
    import numpy as np

    package = find_spec("sklearn")
    folder = Path(str(package.origin)).parent if package else Path()  # it is a dependency
    table = np.loadtxt(folder / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(int)


def _write_once(file: Path, pixels: object) -> None:
    import numpy as np
    from PIL import Image

    if file.exists():
        return
    scaled = np.round(np.asarray(pixels) * (255 / _BRIGHTEST)).astype(np.uint8)
    with write_at_once(file) as temporary:
        Image.fromarray(scaled).save(temporary, format="PNG")


plugin = DataSourcePlugin(
    summary="1,797 handwritten digits of 8x8 pixels that ship with scikit-learn",
    paper="Alpaydin and Kaynak 1998",
    config_class=DigitsConfig,
    build=Digits,
)

"""Made-up pictures of several shapes, each in a colour: data of several labels with known truth.

A picture shows no to three shapes on a noisy background, and its labels are the shapes and colours
that are in it. They depend on nothing but the settings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from patchline.plugin_api import (
    DataSourcePlugin,
    ImageListing,
    ListedImage,
    PluginConfig,
    SourceContext,
)
from patchline.plugins.data_sources.source_files import refuse_path, write_at_once

if TYPE_CHECKING:
    import numpy as np
    from PIL.ImageDraw import ImageDraw

SHAPES = ("circle", "square", "triangle")
COLOURS = {"red": (210, 50, 50), "green": (40, 160, 60), "blue": (50, 80, 210)}
"""Names of the colours, and their red, green and blue."""
_MOST_SHAPES = 3
_SHARES = (0.05, 0.35, 0.35, 0.25)
"""Of the pictures with no, one, two and three shapes."""


class ShapesConfig(PluginConfig):
    """How many pictures there are, and how large."""

    images: Annotated[int, Field(ge=20, le=100_000)] = 800
    """Number of pictures."""

    pixels: Annotated[int, Field(ge=16, le=512)] = 32
    """Height and width of a picture."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the pictures."""


class Shapes:
    """Draw the pictures as PNG files, once, and list them."""

    def __init__(self, config: ShapesConfig, context: SourceContext) -> None:
        refuse_path(context.path, "shapes")
        self.config = config
        self.root = context.work_dir / f"{config.images}-{config.pixels}-{config.seed}"

    def list_images(self) -> ImageListing:
        """Return the pictures with their sets of labels."""
        labels = _draw_all(self.root, self.config)
        images = [
            ListedImage(path=path, label="", labels=tuple(names)) for path, names in labels.items()
        ]
        return ImageListing(name="shapes", root=self.root, images=images, mirror_symmetric=True)


def _draw_all(root: Path, config: ShapesConfig) -> dict[str, list[str]]:
    """Draw all pictures unless they are there, and return the labels of each path."""
    import numpy as np

    table = root / "labels.json"
    if table.exists():
        found: dict[str, list[str]] = json.loads(table.read_text(encoding="utf-8"))
        return found
    labels = {}
    for number in range(config.images):
        generator = np.random.default_rng([config.seed, number])
        path = f"{number:06d}.png"
        labels[path] = _draw(root / path, generator, config.pixels)
    with write_at_once(table) as temporary:  # last: with it, all pictures are there
        temporary.write_text(json.dumps(labels), encoding="utf-8")
    return labels


def _draw(file: Path, generator: np.random.Generator, pixels: int) -> list[str]:
    """Draw one picture, and return its labels."""
    import numpy as np
    from PIL import Image, ImageDraw

    noise = generator.integers(190, 250, (pixels, pixels, 1)) + generator.integers(
        -8, 8, (pixels, pixels, 3)
    )
    picture = Image.fromarray(noise.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    count = int(generator.choice(len(_SHARES), p=_SHARES))
    corners = generator.permutation(_MOST_SHAPES + 1)[:count]  # one quarter for each shape
    names = set()
    for corner in corners.tolist():
        shape = SHAPES[int(generator.integers(len(SHAPES)))]
        colour = list(COLOURS)[int(generator.integers(len(COLOURS)))]
        side = pixels * float(generator.uniform(0.3, 0.45))
        room = pixels / 2 - side
        left = corner % 2 * pixels / 2 + float(generator.uniform(0, room))
        top = corner // 2 * pixels / 2 + float(generator.uniform(0, room))
        _shape(draw, shape, (left, top, side), COLOURS[colour])
        names |= {shape, colour}
    with write_at_once(file) as temporary:
        picture.save(temporary, format="PNG")
    return sorted(names)


def _shape(
    draw: ImageDraw, shape: str, place: tuple[float, float, float], colour: tuple[int, int, int]
) -> None:
    """Draw a shape of a side length from a corner on."""
    left, top, side = place
    if shape == "circle":
        draw.ellipse((left, top, left + side, top + side), fill=colour)
    elif shape == "square":
        draw.rectangle((left, top, left + side, top + side), fill=colour)
    else:
        corners = ((left, top + side), (left + side, top + side), (left + side / 2, top))
        draw.polygon(corners, fill=colour)


plugin = DataSourcePlugin(
    summary="Made-up pictures of shapes and colours, with several labels each",
    paper="",
    config_class=ShapesConfig,
    build=Shapes,
)

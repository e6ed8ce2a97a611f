"""Models with random weights, their visual guides, and what can be read out of a page."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.evaluation.visual_guide.explaining import (
    ImageToExplain,
    PackedRows,
    subject_of,
    write_guide,
)
from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import ModelDescription, describe_plugins
from tests.plugins.model_parity import image_spec

Array = np.ndarray[Any, Any]
CLASSES = ("daisy", "rose", "tulip", "<b>weed</b>\n- 7")
SIDE = 16


class Guide(NamedTuple):
    """A page, and the model and image that it is about."""

    html: str
    model: nn.Module
    description: ModelDescription
    pixels: np.ndarray[Any, np.dtype[np.uint8]]

    @property
    def network_input(self) -> torch.Tensor:
        """The image as the model gets it."""
        return normalize(torch.from_numpy(self.pixels[None]), self.description.image)

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers that the page stores for its first image."""
        found: dict[str, Any] = self.all_numbers[0]
        return found

    @property
    def all_numbers(self) -> list[dict[str, Any]]:
        """The numbers that the page stores, by image."""
        pattern = r'<script type="application/json" id="guide-data">(.*?)</script>'
        match = re.search(pattern, self.html, re.DOTALL)
        assert match is not None
        images: list[dict[str, Any]] = json.loads(match[1])["images"]
        return images

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes that a reader sees, by name."""
        found = re.findall(r'data-shape="([^"]+)">([^<]+)<', self.html)
        return {
            name: tuple(int(n) for n in sizes.split(" \N{MULTIPLICATION SIGN} "))
            for name, sizes in found
        }

    @property
    def steps(self) -> list[str]:
        """The steps of the page, in order."""
        return re.findall(r'<section class="step" id="([^"]+)"', self.html)


def rows_of(stored: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return rows that the page stores in 8 bits."""
    return unpack(PackedRows(stored["packed"], tuple(stored["shape"])))


def make_model(
    settings: dict[str, Any], channels: int = 3, side: int = SIDE
) -> tuple[nn.Module, ModelDescription]:
    """Return a model with random weights, far from uniform attention, and its description."""
    image = image_spec(side, channels=channels)
    choice = ModelChoice.model_validate(settings)
    torch.manual_seed(0)
    model = build_model(choice, image, len(CLASSES))
    for parameter in model.parameters():
        if parameter.ndim > 1 and settings["name"] not in ("timm", "torchvision"):
            nn.init.normal_(parameter, std=0.2)
    description = ModelDescription(
        model=choice,
        plugins=describe_plugins(choice),
        classes=CLASSES,
        image=image,
        temperature=1.3,
    )
    return model.eval(), description


def make_guide(
    settings: dict[str, Any],
    folder: Path,
    *,
    channels: int = 3,
    side: int = SIDE,
    images: int = 1,
    label: str | None = "rose",
) -> Guide:
    """Return the guide to random images in a model with random weights."""
    model, description = make_model(settings, channels, side)
    drawn = np.random.default_rng(3).integers(0, 256, (images, side, side, channels), np.uint8)
    subjects = [
        subject_of(model, description, ImageToExplain(f"image {i}", pixels, pixels, label))
        for i, pixels in enumerate(drawn)
    ]
    file = folder / "guide.html"
    write_guide(subjects, "flowers/3", file)
    return Guide(file.read_text("utf-8"), model, description, drawn[0])


def unpack(stored: PackedRows) -> Array:
    """Return the rows again, to 1/255 of their range."""
    content = zlib.decompress(base64.b64decode(stored.packed))
    lines = int(np.prod(stored.shape[:-1]))
    low = np.frombuffer(content, np.float32, lines)
    high = np.frombuffer(content, np.float32, lines, offset=4 * lines)
    levels = np.frombuffer(content, np.uint8, offset=8 * lines).reshape(lines, -1)
    rows = low[:, None] + (high - low)[:, None] * (levels / 255)
    restored: Array = rows.reshape(stored.shape)
    return restored

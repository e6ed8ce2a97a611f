"""Turn arrays into pictures inside the page: PNG and JPEG files as data URIs.

Maps have one pixel for each value; the page enlarges them, so they stay small and exact.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image

Array = np.ndarray[Any, Any]

HEAT = (
    (8, 6, 29), (36, 12, 79), (81, 18, 124), (125, 36, 129), (171, 51, 124), (214, 69, 108),
    (243, 112, 92), (253, 162, 113), (254, 209, 153), (252, 253, 191),
)  # fmt: skip
"""Colours from nothing to the largest value, at equal distances; the page's script has them too."""
SIGNED = ((31, 100, 174), (128, 170, 214), (244, 245, 247), (232, 155, 112), (191, 74, 18))
"""Colours from the lowest to the highest value of a map with both signs; the middle is 0."""

_LARGEST_PHOTO = 720
_JPEG_QUALITY = 88
_SMALL = 64
_LEVELS = 48
_SHOWN_WIDTH, _LARGEST_CELL = 640, 28

Look = Literal["photo", "overlay", "signed", "map", "matrix", "strip"]


@dataclass(frozen=True)
class Picture:
    """A picture on the page."""

    uri: str
    """The picture's file as a data URI."""
    alt: str
    """What it shows, for those who do not see it."""
    caption: str = ""
    display: Look = "map"
    """How the page sizes it; `overlay` lies on the image that the model sees."""
    width: int = 1
    """Number of values in a row."""
    height: int = 1
    """Number of rows of values."""
    live: str = ""
    """What the script draws in its place, if it runs: the name of a view in `explain.js.j2`."""

    @property
    def shown_width(self) -> int:
        """Pixels on the page: a whole number for each value, so that all look the same."""
        return self.width * max(1, min(_LARGEST_CELL, _SHOWN_WIDTH // self.width))


def picture(values: Array, display: Look, alt: str, caption: str, live: str = "") -> Picture:
    """Return an image (H, W, C), a map, a matrix or a strip of values (h, w) as the page shows it.

    Args:
        values: the values, each of which is a pixel of the picture's file, unless they are a large
            image.
        display: how they are coloured and sized.
        alt: what the picture shows, for those who do not see it.
        caption: the words below the picture.
        live: what the script draws in its place.
    """
    height, width = values.shape[:2]
    return Picture(_URIS[display](values), alt, caption, display, width, height, live)


def map_to_colors(values: Array, colours: tuple[tuple[int, int, int], ...] = HEAT) -> Array:
    """Return the colours of values from 0 to 1: uint8 (..., 3)."""
    anchors = np.array(colours, dtype=np.float64)
    places = np.clip(values, 0, 1) * (len(anchors) - 1)
    lower = np.minimum(places.astype(int), len(anchors) - 2)
    share = (places - lower)[..., None]
    mixed = anchors[lower] * (1 - share) + anchors[lower + 1] * share
    rounded: Array = np.round(mixed).astype(np.uint8)
    return rounded


def heat_uri(values_hw: Array) -> str:
    """Return a map of values from 0 (dark) to its largest (bright)."""
    top = float(values_hw.max())
    return png_uri(map_to_colors(values_hw / top if top > 0 else np.zeros_like(values_hw)))


def draw_signed_overlay(values_hw: Array) -> str:
    """Return a map of values of both signs that is clear where they are 0."""
    limit = float(np.abs(values_hw).max()) or 1.0
    colours = np.where(values_hw[..., None] > 0, SIGNED[-1], SIGNED[0])
    alpha = np.round(np.abs(values_hw) / limit * 215)
    return png_uri(np.concatenate([colours, alpha[..., None]], axis=-1).astype(np.uint8))


def photo_uri(pixels_HWC: Array) -> str:
    """Return an image, uint8 (H, W, 1 or 3): small ones as they are, large ones as JPEG."""
    image = Image.fromarray(pixels_HWC[..., 0] if pixels_HWC.shape[-1] == 1 else pixels_HWC)
    if max(image.size) <= _SMALL:
        return png_uri(np.asarray(image))
    image.thumbnail((_LARGEST_PHOTO, _LARGEST_PHOTO))
    return _uri(image, "jpeg", quality=_JPEG_QUALITY)


def matrix_uri(values_hw: Array) -> str:
    """Return a matrix of both signs: blue below 0, orange above, in a few colours to be small."""
    limit = float(np.quantile(np.abs(values_hw), 0.99)) or 1.0
    levels = np.clip(np.round((values_hw / limit + 1) / 2 * (_LEVELS - 1)), 0, _LEVELS - 1)
    image = Image.fromarray(levels.astype(np.uint8), mode="P")
    image.putpalette(map_to_colors(np.linspace(0, 1, _LEVELS), SIGNED).ravel().tolist())
    return _uri(image, "png", optimize=True)


def png_uri(pixels: Array) -> str:
    """Return uint8 pixels (h, w), (h, w, 3) or (h, w, 4) as a PNG file."""
    return _uri(Image.fromarray(np.ascontiguousarray(pixels)), "png", optimize=True)


def _uri(image: Image.Image, kind: str, **options: object) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def tile(maps_Nhw: Array, columns: int, gap: float = np.nan) -> Array:
    """Return maps side by side, row by row, with one value between them."""
    count, height, width = maps_Nhw.shape[:3]
    rows = -(-count // columns)
    shape = (rows * (height + 1) - 1, columns * (width + 1) - 1, *maps_Nhw.shape[3:])
    sheet = np.full(shape, gap, dtype=np.float64)
    for index, each in enumerate(maps_Nhw):
        top, left = index // columns * (height + 1), index % columns * (width + 1)
        sheet[top : top + height, left : left + width] = each
    return sheet


def sheet_uri(sheet_hw: Array, colours: tuple[tuple[int, int, int], ...] = HEAT) -> str:
    """Return tiled maps with values from 0 to 1; the gaps (not a number) are clear."""
    gaps = np.isnan(sheet_hw)
    rgb = map_to_colors(np.where(gaps, 0, sheet_hw), colours)
    alpha = np.where(gaps, 0, 255).astype(np.uint8)[..., None]
    return png_uri(np.concatenate([rgb, alpha], axis=-1))


def patches_uri(pixels_HWC: Array, grid: tuple[int, int]) -> str:
    """Return the image cut along a grid, with clear gaps between the patches."""
    rows, columns = grid
    height, width = pixels_HWC.shape[0] // rows, pixels_HWC.shape[1] // columns
    whole = pixels_HWC[: rows * height, : columns * width]
    gap = max(1, min(height, width) // 8)
    rgb = np.broadcast_to(whole, (*whole.shape[:2], 3))
    side_by_side = rgb.reshape(rows, height, columns, width, 3)
    cut = np.zeros((rows, height + gap, columns, width + gap, 4), dtype=np.uint8)
    cut[:, :height, :, :width, :3] = side_by_side
    cut[:, :height, :, :width, 3] = 255
    sheet = cut.reshape(rows * (height + gap), columns * (width + gap), 4)
    image = Image.fromarray(sheet[:-gap, :-gap])
    if max(image.size) <= 2 * _SMALL:
        return png_uri(np.asarray(image))
    return _uri(image, "webp", quality=_JPEG_QUALITY)


_URIS: dict[Look, Callable[[Array], str]] = {
    "photo": photo_uri,
    "overlay": heat_uri,
    "signed": draw_signed_overlay,
    "map": sheet_uri,
    "matrix": matrix_uri,
    "strip": matrix_uri,
}

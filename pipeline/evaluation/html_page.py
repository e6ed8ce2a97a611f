"""Render self-contained HTML pages: no scripts, no network, no other files."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from patchline.pipeline.evaluation.visual_guide.pictures import map_to_colors
from patchline.pipeline.templates import page_environment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]

_PACKAGE = "patchline.pipeline.evaluation"
_THUMBNAIL_SIDE = 160
_LOSSLESS_SIDE = 48
_JPEG_QUALITY = 84
_TINT = 0.55
_LARGE_PICTURE_BYTES = 300_000
_LARGE_PICTURE_WIDTH = 1400


def render(template: str, *, package: str = _PACKAGE, **values: Any) -> str:
    """Render a template of a package, which may include those of this one.

    Args:
        template: file name of the template.
        package: name of the package whose folder holds the template.
        values: values that the template shows, each of which is escaped.
    """
    environment = page_environment(*{package: None, _PACKAGE: None})
    return environment.get_template(template).render(**values)


def thumbnail(pixels_HWC: Array) -> str:
    """Return a data URI of a thumbnail: small images losslessly, larger ones as JPEG.

    Args:
        pixels_HWC: uint8, grey (one channel) or RGB.
    """
    import cv2

    height, width = pixels_HWC.shape[:2]
    pixels = np.ascontiguousarray(pixels_HWC[:, :, ::-1])
    if max(height, width) <= _LOSSLESS_SIDE:
        return _data_uri("png", cv2.imencode(".png", pixels)[1])
    if max(height, width) > _THUMBNAIL_SIDE:
        scale = _THUMBNAIL_SIDE / max(height, width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return _data_uri("jpeg", _jpeg(pixels))


def tint(map_hw: Array, pixels_HWC: Array) -> Array:
    """Return an image under the colours of a map, from its lowest value (dark) to its highest.

    Args:
        map_hw: values of the map, each of which colours its part of the image.
        pixels_HWC: uint8, grey (one channel) or RGB.
    """
    import cv2

    height, width = pixels_HWC.shape[:2]
    span = float(np.ptp(map_hw)) or 1.0
    colours_hwC = map_to_colors((map_hw - map_hw.min()) / span)
    colours_HWC = cv2.resize(colours_hwC, (width, height), interpolation=cv2.INTER_NEAREST)
    mixed: Array = _TINT * colours_HWC + (1 - _TINT) * pixels_HWC.astype(np.float64)
    return np.round(mixed).astype(np.uint8)


def vector_graphic(figure: Figure) -> str:
    """Return a data URI of a figure as SVG, with its letters as outlines."""
    import matplotlib as mpl

    drawn = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "patchline"}):  # the same figure gives the same text
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    return _data_uri("svg+xml", drawn.getvalue().encode())


def picture(file: Path) -> str:
    """Return a data URI of a PNG file; a large one is scaled down."""
    import cv2

    content = file.read_bytes()
    if len(content) <= _LARGE_PICTURE_BYTES:
        return _data_uri("png", content)
    pixels: Any = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    height, width = pixels.shape[:2]
    if width > _LARGE_PICTURE_WIDTH:
        size = (_LARGE_PICTURE_WIDTH, max(1, round(height * _LARGE_PICTURE_WIDTH / width)))
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return _data_uri("jpeg", _jpeg(pixels))


def _jpeg(pixels: Array) -> Any:
    import cv2

    return cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])[1]


def _data_uri(kind: str, content: Any) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(bytes(content)).decode()}"

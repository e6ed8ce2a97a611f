"""Draw what a patch embedding does to a photograph: its grid, its overlap and what a token sees.

Everything drawn is measured on the built module, with the random weights that it starts from, so
an embedding that somebody else wrote is drawn like the built-in ones.

Shapes: C channels, H height, W width.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image
from torch import nn

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data.reading.decoding import UndecodableImageError, decode_image
from patchline.pipeline.data.reading.image_file import image_bytes
from patchline.pipeline.errors import ConfigError, DataError, PluginError
from patchline.pipeline.evaluation.visual_guide.receptive_field import (
    Box,
    ReceptiveField,
    Span,
    measure,
)
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_settings import settings_of
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.plugin_api import DataTraits, PatchEmbeddingContext

SIDE = 224
"""Side in pixels of the photograph that is drawn."""
EMBED_DIM = 192
"""Dimension of a token, that of ViT-Ti."""
ENDINGS = (".png", ".svg", ".pdf")
"""Kinds of picture files."""

Photo = np.ndarray[Any, np.dtype[np.uint8]]
Settings = Mapping[str, object]

_CLASSES = 1000  # no embedding looks at it, but the traits of the data want a number
_DPI = 120
_WIDTH, _PANEL = 12.0, 2.6  # inches
_MOST_STEPS = 20  # up to so many tokens per pixel, each number has a colour of its own
_INK, _GREY = "#1b1f24", "#59636e"
_NEIGHBOURS = (  # colours that the colour-blind can tell apart, and lines that need no colour
    ("one token", "#d55e00", "-"),
    ("its right neighbour", "#0072b2", "--"),
    ("its lower neighbour", "#009e73", ":"),
)


@dataclass(frozen=True)
class EmbeddingView:
    """What is drawn of a patch embedding."""

    name: str
    summary: str
    parameters: int
    """Trained numbers, for tokens of dimension 192."""
    field: ReceptiveField

    @property
    def caption(self) -> str:
        """Tokens, grid, receptive field, stride and parameters in one line."""
        (rows, columns), (height, width) = self.field.grid, self.field.size
        down, across = self.field.stride
        stride = f"{down:g}" if down == across else f"{down:g} down, {across:g} across"
        least = "at least " if self.field.is_cut else ""
        return (
            f"{rows * columns:,} tokens on a grid of {rows} x {columns}   ·   each sees {least}"
            f"{height} x {width} pixels   ·   stride {stride} pixels   ·   "
            f"{self.parameters:,} parameters (D = {EMBED_DIM})"
        )


def view(name: str, settings: Settings) -> EmbeddingView:
    """Build the patch embedding for a 224x224 RGB image, with fixed random weights, and measure it.

    Raises:
        ConfigError: if a setting is unknown, or does not fit the image.
        PluginError: if the plugin is unknown or broken.
    """
    plugin = plugin_loader.load_patch_embedding(name)
    choice = PluginChoice(name=name).with_settings(dict(settings))
    traits = DataTraits(3, SIDE, SIDE, _CLASSES, mirror_symmetric=True)
    resolved = settings_of("patch_embedding", choice, "patch_embedding").resolved_for(traits)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # the generators of other devices stay as they are
        module = plugin.build(resolved, PatchEmbeddingContext(3, SIDE, SIDE, EMBED_DIM))
        if not isinstance(module, nn.Module):
            raise PluginError(
                f"The patch_embedding plugin '{name}' built a {type(module).__name__}, not a "
                "torch.nn.Module. Repair its build."
            )
        field = measure(module, SIDE, SIDE)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return EmbeddingView(name, plugin.summary, parameters, field)


def load_photo(file: Path | None) -> Photo:
    """Return the centre of a photograph as uint8 (224, 224, 3); without a file, scikit-learn's own.

    Raises:
        DataError: if the file is not an image that can be read.
    """
    if file is None:
        from sklearn.datasets import load_sample_image

        pixels_HWC = np.asarray(load_sample_image("china.jpg"))
    else:
        try:
            with image_bytes(file) as data:
                pixels_HWC = decode_image(data, 3)
        except UndecodableImageError as error:
            raise DataError(
                f"Photo {file} cannot be read: {error}. Give the path of a complete image."
            ) from error
    height, width = pixels_HWC.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square_HWC = np.ascontiguousarray(pixels_HWC[top : top + side, left : left + side])
    method = cv2.INTER_AREA if side > SIDE else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(square_HWC, (SIDE, SIDE), interpolation=method), dtype=np.uint8)


def draw_view(shown: EmbeddingView, photo: Photo) -> Figure:
    """Draw a measured patch embedding: grid, neighbours, influence, and how many tokens see."""
    height = 4.5
    figure = _figure(height)
    _write(figure, 0.3, height - 0.36, shown.name, size=19, weight="bold")
    _write(figure, 0.3, height - 0.68, shown.summary, size=12.5, color=_GREY)
    window = _window(shown.field)
    panels = [_panel(figure, 0.3 + place * (_PANEL + 0.22), 0.8) for place in range(4)]
    _draw_grid(panels[0], photo, shown.field, window)
    _draw_neighbours(panels[1], photo, shown.field, window)
    _draw_influence(panels[2], photo, shown.field, window)
    _draw_counts(figure, panels[3], shown.field)
    headings = ("Grid of tokens", "Three neighbours", "Where one token looks", "Tokens per pixel")
    for axes, heading in zip(panels, headings, strict=True):
        axes.set_title(heading, loc="left", size=12.5, color=_INK, pad=6)
    _write_key(figure, 0.3 + _PANEL + 0.22, 0.56)
    _write(figure, 0.3, 0.2, shown.caption, size=12.5)
    return figure


def draw_overview(views: Sequence[EmbeddingView], photo: Photo) -> Figure:
    """Draw several patch embeddings side by side: neighbours and influence, at one scale."""
    row_height, rows = _PANEL + 0.75, -(-len(views) // 2)
    height = rows * row_height + 0.5
    figure = _figure(height)
    views = sorted(views, key=lambda shown: shown.field.size)
    sides = [_window_side(shown.field) for shown in views]
    common = max((side for side in sides if side <= SIDE // 2), default=SIDE)
    for place, (shown, side) in enumerate(zip(views, sides, strict=True)):
        left = 0.3 + place % 2 * 6.05
        bottom = height - (place // 2 + 1) * row_height + 0.1
        window = _window(shown.field, common if side <= common else SIDE)
        first, second = _panel(figure, left, bottom), _panel(figure, left + _PANEL + 0.15, bottom)
        _draw_neighbours(first, photo, shown.field, window)
        _draw_influence(second, photo, shown.field, window)
        (down, across), (tall, wide) = shown.field.stride, shown.field.size
        stride = f"{down:g}" if down == across else f"{down:g} x {across:g}"
        _write(figure, left, bottom + _PANEL + 0.14, shown.name, size=14, weight="bold")
        whole = "" if side <= common else " (whole photo)"
        note = f"sees {tall} x {wide}, stride {stride}{whole}"
        _write(figure, left + 5.35, bottom + _PANEL + 0.14, note, size=12, color=_GREY, ha="right")
    _write_key(figure, 0.3, 0.22)
    return figure


def save_figure(figure: Figure, file: Path) -> Path:
    """Write a picture as PNG, SVG or PDF, the same bytes whenever it is repeated.

    Raises:
        ConfigError: if the file's name has another ending.
        StorageError: if the place may not be written, or is full.
    """
    ending = _check_ending(file)
    with replace_file(file) as temporary:
        if ending == ".png":
            drawn = io.BytesIO()
            figure.savefig(drawn, format="png", dpi=_DPI)
            colours = Image.open(drawn, formats=("PNG",)).convert("RGB").quantize(256, kmeans=3)
            colours.save(temporary, format="PNG", optimize=True)
        else:
            dates = {"Date": None} if ending == ".svg" else {"CreationDate": None}
            with mpl.rc_context({"svg.hashsalt": "patchline"}):
                figure.savefig(temporary, format=ending[1:], metadata={**dates, "Creator": None})
    return file


def save_picture(name: str, settings: Settings, photo_file: Path | None, out: Path) -> Path:
    """Draw one patch embedding on a photograph, by default scikit-learn's, and write the picture.

    Raises:
        ConfigError: if a setting does not fit, or `out` does not end in .png, .svg or .pdf.
        DataError: if the photograph cannot be read.
        PluginError: if the plugin is unknown or broken.
        StorageError: if the place may not be written, or is full.
    """
    _check_ending(out)
    photo = load_photo(photo_file)
    return save_figure(draw_view(view(name, settings), photo), out)


def _check_ending(file: Path) -> str:
    ending = file.suffix.lower()
    if ending not in ENDINGS:
        raise ConfigError(
            f"The picture {file} ends in '{ending}', which is not a kind of picture that can be "
            f"drawn. Name a file that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}."
        )
    return ending


# -- panels ------------------------------------------------------------------------------------


def _draw_grid(axes: Axes, photo: Photo, field: ReceptiveField, window: Box) -> None:
    axes.imshow(photo, extent=(0, SIDE, SIDE, 0))
    rows, columns = field.grid
    width = min(0.9, 14 / max(rows, columns))
    down, across = np.arange(1, rows) * SIDE / rows, np.arange(1, columns) * SIDE / columns
    axes.hlines(down, 0, SIDE, colors="white", linewidths=width)
    axes.vlines(across, 0, SIDE, colors="white", linewidths=width)
    if window.size != (SIDE, SIDE):
        _outline(axes, window, "black", "-", 3.2)
        _outline(axes, window, "#f0e442", "-", 1.6)


def _draw_neighbours(axes: Axes, photo: Photo, field: ReceptiveField, window: Box) -> None:
    axes.imshow(_fade(photo, 0.55, 110), extent=(0, SIDE, SIDE, 0), interpolation="nearest")
    boxes = _neighbours(field)
    for box, (_, colour, line) in zip(boxes, _NEIGHBOURS, strict=True):
        if box is not None:
            (top, _), (left, _) = box
            height, width = box.size
            axes.add_patch(Rectangle((left, top), width, height, color=colour, alpha=0.3, lw=0))
            _outline(axes, box, colour, line, 2.4)
    _zoom(axes, window)


def _draw_influence(axes: Axes, photo: Photo, field: ReceptiveField, window: Box) -> None:
    heat_HWC = mpl.colormaps["inferno"](0.25 + 0.75 * field.influence_HW)[:, :, :3] * 255
    strength_HW1 = np.sqrt(field.influence_HW)[:, :, None]
    dark_HWC = _fade(photo, 0.4, 0)
    blended = dark_HWC * (1 - strength_HW1) + heat_HWC * strength_HW1
    axes.imshow(blended.astype(np.uint8), extent=(0, SIDE, SIDE, 0), interpolation="nearest")
    _outline(axes, field.box(*field.inner_token), "white", "--", 1.2)
    _zoom(axes, window)


def _draw_counts(figure: Figure, axes: Axes, field: ReceptiveField) -> None:
    counts = field.count_map()
    most = int(counts.max())
    steps = most + 1 if most <= _MOST_STEPS else None
    shown = axes.imshow(
        counts,
        cmap=mpl.colormaps["viridis"].resampled(steps or 256),
        vmin=-0.5 if steps else 0,
        vmax=most + 0.5 if steps else most,
        extent=(0, SIDE, SIDE, 0),
        interpolation="nearest",
    )
    place = axes.get_position()
    bar = figure.add_axes((place.x1 + 0.008, place.y0, 0.011, place.height))
    figure.colorbar(shown, cax=bar, ticks=MaxNLocator(6, integer=True))
    bar.tick_params(labelsize=11, length=3, colors=_INK)


def _neighbours(field: ReceptiveField) -> tuple[Box, Box | None, Box | None]:
    """Return the boxes of the inner token and of its right and lower neighbours, if it has any."""
    (row, column), (rows, columns) = field.inner_token, field.grid
    right = field.box(row, column + 1) if column + 1 < columns else None
    lower = field.box(row + 1, column) if row + 1 < rows else None
    return field.box(row, column), right, lower


def _around(field: ReceptiveField) -> Box:
    """Return the smallest box around three neighbours."""
    boxes = [box for box in _neighbours(field) if box is not None]
    return Box(
        *(
            Span(min(span.start for span in spans), max(span.end for span in spans))
            for spans in zip(*boxes, strict=True)
        )
    )


def _window(field: ReceptiveField, side: int | None = None) -> Box:
    """Return the square part of the image, around three neighbours, that is drawn enlarged."""
    length = side or _window_side(field)
    starts = (
        min(max(0, (span.start + span.end - length) // 2), SIDE - length) for span in _around(field)
    )
    return Box(*(Span(start, start + length) for start in starts))


def _window_side(field: ReceptiveField) -> int:
    return min(SIDE, round(1.5 * max(_around(field).size)))


def _zoom(axes: Axes, window: Box) -> None:
    axes.set_xlim(window.columns.start, window.columns.end)
    axes.set_ylim(window.rows.end, window.rows.start)


def _outline(axes: Axes, box: Box, colour: str, line: str, width: float) -> None:
    (top, _), (left, _) = box
    tall, wide = box.size
    axes.add_patch(
        Rectangle((left, top), wide, tall, fill=False, edgecolor=colour, linestyle=line, lw=width)
    )


def _fade(photo: Photo, contrast: float, lift: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the photograph in grey, with less contrast, so that colours on it stand out."""
    grey_HW = cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY)
    faded: np.ndarray[Any, np.dtype[np.uint8]] = np.repeat(
        (grey_HW[:, :, None] * contrast + lift).astype(np.uint8), 3, axis=2
    )
    return faded


# -- places on the page, in inches -------------------------------------------------------------


def _figure(height: float) -> Figure:
    return Figure(figsize=(_WIDTH, height), dpi=_DPI, facecolor="white")


def _panel(figure: Figure, left: float, bottom: float) -> Axes:
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, bottom / height, _PANEL / width, _PANEL / height))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return axes


def _write(figure: Figure, left: float, bottom: float, text: str, **style: Any) -> None:
    width, height = figure.get_size_inches()
    style = {"color": _INK, **style}
    figure.text(left / width, bottom / height, text, parse_math=False, **style)


def _write_key(figure: Figure, left: float, bottom: float) -> None:
    """Say which colour and line is which token."""
    for place, (text, colour, _) in zip((0, 1.2, 3.05), _NEIGHBOURS, strict=True):
        _write(figure, left + place, bottom, f"■ {text}", size=11.5, color=colour)

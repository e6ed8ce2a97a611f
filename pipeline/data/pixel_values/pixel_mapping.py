"""How the pixel values of a data set become 8 bits.

Copied into every packaged model, so that a package maps an image as its training did. An ordinary
image of 8 bits is not touched.

H: height, W: width, N: samples per pixel as they are in the file, C: channels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from PIL import Image


class UndecodableImageError(ValueError):
    """The bytes are not a complete image, or nothing says what their values mean."""


Values = np.ndarray[Any, Any]

EIGHT_BITS = "uint8"
FLOAT = "float"
_SIXTEEN_BITS = np.dtype(np.uint16)
_WHITE = 255
_LEAST_USED = 1 / 16
"""Without a range, 16-bit values that use a smaller part of theirs may be of 12 bits or fewer."""
_ORIENTATION_TAG = 0x0112
_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in image decoders
_PILLOW_MODES = {"uint16": "I;16", "int32": "I", FLOAT: "F"}


class FileValues(NamedTuple):
    """What an image file holds, before it becomes 8 bits."""

    samples_HWN: Values
    """Colors first, then opacity if there is one, then the bands of which nothing is known."""
    colors: int
    """1 for grey, 3 for red, green and blue, as the format says."""
    opacity: str = ""
    """How colors and opacity are stored, if there is one: `straight` or `associated`."""
    declared: float = 0.0
    """The value of white that the file declares; 0 if it declares none."""
    inverted: bool = False
    """Whether 0 is white."""
    no_data: float | None = None
    """The value that stands for a missing one."""
    pages: int = 1
    """The number of pages in the file; these values are those of the first."""
    orientation: int = 1
    """The orientation of the image, as EXIF numbers it; 1 is upright."""

    @property
    def kind(self) -> str:
        """The type of the values, such as `uint8`, `uint16`, `int32` or `float`."""
        return kind_of(self.samples_HWN.dtype)

    @property
    def bands(self) -> int:
        """The number of samples per pixel, opacity included."""
        return int(self.samples_HWN.shape[2])

    def missing(self, samples: Values) -> Values:
        """Return which of some samples of this file are no number, or stand for a missing one."""
        wrong = np.zeros(samples.shape, np.bool_)
        if samples.dtype.kind == "f":
            wrong |= ~np.isfinite(samples)
        if self.no_data is not None:
            wrong |= samples == self.no_data
        return wrong


class DeepFile(NamedTuple):
    """An image file that does not simply hold 8 bits per color."""

    width: int
    height: int
    mode: str
    """Pillow's name of the pixel format where it has one, else the type and number of samples."""
    pixel_bytes: int
    read: Callable[[], FileValues]

    @classmethod
    def of(
        cls,
        size: tuple[int, int],
        samples: int,
        read: Callable[[], FileValues],
        dtype: np.dtype[Any] = _SIXTEEN_BITS,
    ) -> Self:
        """Return a file of so many samples per pixel; its size is width and height."""
        kind = kind_of(dtype)
        mode = _PILLOW_MODES.get(kind, kind) if samples == 1 else f"{kind} x {samples}"
        return cls(*size, mode, samples * dtype.itemsize, read)


class ValueFit(NamedTuple):
    """How the values of an image fit the range that they were mapped with."""

    kind: str = EIGHT_BITS
    """The type of its values."""
    share: float = 0.0
    """The fraction of its values outside of the range, 0 to 1."""
    low: float = 0.0
    """Its smallest value; not measured if it has 8 bits per color."""
    high: float = float(_WHITE)
    """Its largest value; not measured if it has 8 bits per color."""
    reduced: int = 0
    """Bits per color of its file, if its decoder reduces them to 8."""


@dataclass(frozen=True)
class PixelMapping:
    """The value ranges of a data set, and which bands of its images are used."""

    ranges: tuple[tuple[str, float, float], ...] = ()
    """One entry for each type of values: the type, the value that becomes 0, and the value that
    becomes 255."""
    bands: tuple[int, ...] = ()
    """The bands of each image that are used, from 1; empty for the colors of its format."""
    opacity: bool = True
    """Whether transparent pixels become white, where a file has an opacity."""
    eight_bit: bool = field(default=True, compare=False)
    """Whether images of 8 bits per color are among those of the training; changes no pixel."""

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> PixelMapping:
        """Return the mapping that `json` has written, or that of ordinary images."""
        ranges = described.get("ranges", ())
        return cls(
            ranges=tuple((str(e["kind"]), float(e["low"]), float(e["high"])) for e in ranges),
            bands=tuple(int(band) for band in described.get("bands", ())),
            opacity=bool(described.get("opacity", True)),
            eight_bit=bool(described.get("eight_bit", True)),
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is that of ordinary images."""
        return self == PLAIN

    def json(self) -> dict[str, Any]:
        """Return what determines pixels, as what JSON can hold."""
        named = [{"kind": kind, "low": low, "high": high} for kind, low, high in self.ranges]
        return {"ranges": named, "bands": list(self.bands), "opacity": self.opacity}

    @property
    def trained_kinds(self) -> tuple[str, ...]:
        """The types of values that the images of the training have."""
        return (*[EIGHT_BITS] * self.eight_bit, *(kind for kind, _, _ in self.ranges))

    def range_of(self, kind: str) -> tuple[float, float] | None:
        """Return the range of a type of values, if there is one."""
        if kind == EIGHT_BITS:
            return 0.0, float(_WHITE)
        ranges = [(low, high) for name, low, high in self.ranges if name == kind]
        return ranges[0] if ranges else None

    def eight_bits(self, values: FileValues, channels: int) -> tuple[Values, ValueFit]:
        """Return an image as uint8 (H, W, C), and how its values fit the range.

        Raises:
            UndecodableImageError: if nothing says what becomes of its values or bands.
        """
        colors_HWN = self._chosen(values)
        low, high = self.range_of(values.kind) or _own_range(values, colors_HWN, self)
        mapped_HWN = scale_to_uint8(colors_HWN, low, high)
        missing = values.missing(colors_HWN)
        if missing.any():
            mapped_HWN[missing] = 0
        if values.inverted and not self.bands:
            mapped_HWN = _WHITE - mapped_HWN
        if values.opacity and self.opacity and not self.bands:
            mapped_HWN = _on_white(mapped_HWN, values, high)
        known = colors_HWN[~missing] if missing.any() else colors_HWN
        fit = ValueFit() if values.kind == EIGHT_BITS else _fit(values.kind, known, low, high)
        return with_channels(mapped_HWN, channels), fit

    def selected(self, samples_HWN: Values, channels: int) -> Values:
        """Return the bands of an image of 8 bits that are used, with so many channels (H, W, C).

        Raises:
            UndecodableImageError: if it has fewer bands.
        """
        return with_channels(choose_bands(samples_HWN, self.bands), channels)

    def _chosen(self, values: FileValues) -> Values:
        """Return the bands that are used (H, W, 1 or 3)."""
        if self.bands:
            return choose_bands(values.samples_HWN, self.bands)
        unknown = values.bands - values.colors - bool(values.opacity)
        if unknown:
            raise UndecodableImageError(
                f"it has {values.bands} bands, and nothing says which of them are used; convert it "
                "to RGB, or train with data.bands"
            )
        return values.samples_HWN[:, :, : values.colors]


PLAIN = PixelMapping()
"""Of ordinary images."""


def kind_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a type of values; that of all floating-point numbers is the same."""
    return FLOAT if dtype.kind == "f" else dtype.name


def orientation_in(exif: bytes) -> int:
    """Return the orientation that EXIF data state; 1 if none can be read.

    Nothing else turns an image, as in browsers: Pillow also asks XMP and texts of PNG files.
    """
    tags = Image.Exif()
    try:
        tags.load(exif)
        return int(tags.get(_ORIENTATION_TAG, 1))
    except Exception:  # noqa: BLE001 - an unreadable orientation counts as none
        return 1


def choose_bands(samples_HWN: Values, bands: tuple[int, ...]) -> Values:
    """Return some bands of an image, counted from 1.

    Raises:
        UndecodableImageError: if it has fewer.
    """
    there = samples_HWN.shape[2]
    if max(bands) > there:
        named = ", ".join(map(str, bands))
        raise UndecodableImageError(
            f"it has {there} band{'' if there == 1 else 's'}, but data.bands is {named}"
        )
    return samples_HWN[:, :, [band - 1 for band in bands]]


def scale_to_uint8(samples: Values, low: float, high: float) -> Values:
    """Map values to uint8: `low` and what is below to 0, `high` and what is above to 255."""
    if samples.dtype == np.uint8 and (low, high) == (0, _WHITE):
        return np.array(samples)
    if samples.dtype.itemsize == 2 and samples.dtype.kind in "iu":  # noqa: PLR2004 - 16 bits
        table: Values = _table(samples.dtype.str, low, high)[samples.view(np.uint16)]
        return table
    return _scale_and_round(samples, low, high)


def with_channels(pixels_HWN: Values, channels: int) -> Values:
    """Return an image of 8 bits (H, W, 1 or 3) with so many channels."""
    if pixels_HWN.shape[2] == channels:
        return np.ascontiguousarray(pixels_HWN)
    if channels > 1:
        return np.repeat(pixels_HWN, channels, axis=2)
    grey_HW: Values = np.round(pixels_HWN @ np.array(_LUMA)).astype(np.uint8)
    return grey_HW[:, :, None]


@functools.lru_cache(maxsize=8)
def _table(dtype: str, low: float, high: float) -> Values:
    """Return what each of the 65,536 values of 16 bits becomes."""
    return _scale_and_round(np.arange(1 << 16, dtype=np.uint16).view(dtype), low, high)


def _scale_and_round(samples: Values, low: float, high: float) -> Values:
    with np.errstate(all="ignore"):  # what is no number becomes 0
        steps = (samples.astype(np.float64) - low) * (_WHITE / (high - low or 1.0))
        known = np.nan_to_num(steps, nan=0.0, posinf=_WHITE, neginf=0.0)
        mapped: Values = np.floor(np.clip(known, 0, _WHITE) + 0.5).astype(np.uint8)
    return mapped


def white_of(kind: str, highest: float, declared: float) -> float:
    """Return the value of white of an image that no range is known for; 0 if nothing says it.

    Args:
        kind: the type of its values.
        highest: the largest of them.
        declared: the value of white that its file declares; 0 if none.
    """
    if kind.startswith("uint") and 0 < highest <= declared:
        return declared
    most = float(np.iinfo(np.uint16).max)
    return most if kind == "uint16" and (highest == 0 or highest > most * _LEAST_USED) else 0.0


def kind_words(kind: str) -> str:
    """Return a type of values in words: `16-bit`, `signed 32-bit`, `floating-point`."""
    if kind == FLOAT:
        return "floating-point"
    bits = kind.removeprefix("u").removeprefix("int")
    return f"{bits}-bit" if kind.startswith("u") else f"signed {bits}-bit"


def _own_range(
    values: FileValues, colors_HWN: Values, mapping: PixelMapping
) -> tuple[float, float]:
    """Return the range of 16-bit values that use theirs, or that declare it.

    Raises:
        UndecodableImageError: if nothing says what is black and what is white.
    """
    highest = float(colors_HWN.max(initial=0))
    white = white_of(values.kind, highest, values.declared)
    if white:
        return 0.0, white
    kinds = [kind_words(kind) for kind, _, _ in mapping.ranges]
    trained = f"{' and '.join(kinds)} values" if kinds else "8 bits"
    reach = f" up to {number(highest)}" if values.kind == "uint16" else ""
    raise UndecodableImageError(
        f"it has {kind_words(values.kind)} values{reach}, and nothing says which are black and "
        f"white, because the value range is for images of {trained}; convert it to 8 bits"
    )


def _fit(kind: str, present: Values, low: float, high: float) -> ValueFit:
    if not present.size:
        return ValueFit(kind, 0.0, low, high)
    outside = int(np.count_nonzero(present < low) + np.count_nonzero(present > high))
    return ValueFit(kind, outside / present.size, float(present.min()), float(present.max()))


def _on_white(colors_HWN: Values, values: FileValues, high: float) -> Values:
    """Lay transparent pixels on white."""
    opacity = values.samples_HWN[:, :, values.colors : values.colors + 1].astype(np.float64)
    is_integer = values.samples_HWN.dtype.kind in "iu"
    most = float(np.iinfo(values.samples_HWN.dtype).max) if is_integer else 1.0
    share = np.clip(opacity / (high if 0 < opacity.max(initial=0) <= high else most), 0, 1)
    parts = colors_HWN * (1 if values.opacity == "associated" else share)
    blended: Values = np.round(np.minimum(parts + _WHITE * (1 - share), _WHITE)).astype(np.uint8)
    return blended


def number(value: float) -> str:
    """Return a value for people: `4,095`, `0.25`, `-1,000`."""
    if float(value).is_integer() and abs(value) < 1e15:  # noqa: PLR2004 - exact in 64 bits
        return f"{int(value):,}"
    return f"{value:.4g}"

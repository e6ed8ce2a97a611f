"""The first page of a TIFF file: its tags, and its blocks of packed pixels.

This module is copied into every packaged model.

TIFF Revision 6.0, Adobe, 1992; BigTIFF as libtiff defines it.
"""

from __future__ import annotations

import struct
from typing import Any, Literal, NamedTuple

import numpy as np

from patchline.pipeline.data.pixel_values.undecodable import UndecodableImageError

_TIFF_TYPES = dict(
    zip(
        (1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 16, 17, 18),
        ("u1", "u1", "u2", "u4", "i1", "u1", "i2", "i4", "f4", "f8", "u4", "u8", "i8", "u8"),
        strict=True,
    )
)
_STRIPS, _STRIP_BYTES, _TILES, _TILE_BYTES = 273, 279, 324, 325
_SUBFILE, _MAX_SAMPLE, _S_MAX_SAMPLE, _NO_DATA, _SUB_DIRECTORIES = 254, 281, 341, 42113, 330
_DNG_VERSION, _DESCRIPTION, _HAMAMATSU, _PALETTE = 50706, 270, 65420, 320
_REDUCED, _MASK = 1, 4
_MOST_TAGS, _MOST_PAGES = 4096, 100_000
_BIG_TIFF = 43
_CANON = b"CR"

ByteOrder = Literal["<", ">"]
TiffTags = dict[int, np.ndarray[Any, Any]]


class TiffPage(NamedTuple):
    """What the tags of the first page state."""

    order: ByteOrder
    """`<` or `>`: the order of bytes."""
    pages: int
    """Of the file, without masks and smaller versions of an image."""
    width: int
    height: int
    bits: tuple[int, ...]
    """Of each sample of a pixel."""
    samples: int
    """Per pixel."""
    formats: tuple[int, ...]
    """1 for unsigned integers, 2 for signed ones, 3 for floating-point numbers."""
    photometric: int
    """0: grey, white is zero; 1: grey, black is zero; 2: RGB; -1 if it is not stated."""
    extra: tuple[int, ...]
    """Of each sample beyond the colors; 1 and 2 are opacity, 0 is not specified."""
    compression: int
    fill_order: int
    predictor: int
    is_planar: bool
    tile: tuple[int, int] | None
    """Height and width, if the image is stored in tiles."""
    rows_per_strip: int
    blocks: tuple[tuple[int, int], ...]
    """Start and length of the strips or tiles."""
    orientation: int
    declared: float
    """The largest value that the file declares; 0 if none."""
    no_data: float | None
    palette_bits: int
    """16 if its palette has colors that 8 bits do not tell apart; 0 otherwise."""
    is_raw: bool
    """Whether it is the thumbnail of a camera's raw file."""
    is_slide: bool
    """Whether it is a scan of a whole microscope slide."""


def tiff_page(data: bytes) -> TiffPage:
    """Return what the first page states.

    Raises:
        UndecodableImageError: if its tags are damaged.
    """
    order: ByteOrder = "<" if data.startswith(b"II") else ">"
    try:
        tags, pages = _first_page(data, order)
    except (struct.error, IndexError) as error:
        raise UndecodableImageError("the file ends too early") from error

    def several(tag: int) -> tuple[int, ...]:
        return tuple(int(each) for each in tags.get(tag, ()))

    def one(tag: int, otherwise: int) -> int:
        return (several(tag) or (otherwise,))[0]

    samples = one(277, 1)
    tiled = _TILES in tags
    starts = several(_TILES if tiled else _STRIPS)
    lengths = several(_TILE_BYTES if tiled else _STRIP_BYTES)
    if len(starts) == 1 and not lengths:
        lengths = (len(data) - starts[0],)
    is_thumbnail = bool(one(_SUBFILE, 0) & _REDUCED)
    text = bytes(tags.get(_DESCRIPTION, b""))
    return TiffPage(
        order=order,
        pages=pages,
        width=one(256, 0),
        height=one(257, 0),
        bits=several(258) or (1,),
        samples=samples,
        formats=several(339) or (1,),
        photometric=one(262, -1),
        extra=several(338),
        compression=one(259, 1),
        fill_order=one(266, 1),
        predictor=one(317, 1),
        is_planar=one(284, 1) == 2 and samples > 1,  # noqa: PLR2004 - separate planes
        tile=(one(323, 0), one(322, 0)) if tiled else None,
        rows_per_strip=one(278, 1 << 32),
        blocks=tuple(zip(starts, lengths, strict=False)),
        orientation=one(274, 1),
        declared=_declared(tags),
        no_data=_no_data(tags),
        palette_bits=_palette_bits(tags),
        is_raw=_DNG_VERSION in tags
        or (data[8:10] == _CANON and data[2] == 42)  # noqa: PLR2004 - a classic TIFF file
        or (is_thumbnail and _SUB_DIRECTORIES in tags),
        is_slide=_HAMAMATSU in tags or text.startswith(b"Aperio"),
    )


def _first_page(data: bytes, order: ByteOrder) -> tuple[TiffTags, int]:
    """Return the tags of the first page, and the number of pages."""
    is_big = struct.unpack_from(f"{order}H", data, 2)[0] == _BIG_TIFF
    start = struct.unpack_from(f"{order}Q" if is_big else f"{order}I", data, 8 if is_big else 4)[0]
    tags, following = _page_tags(data, order, start, is_big)
    pages, passed = 1, {start}
    while following and following not in passed and pages < _MOST_PAGES:
        passed.add(following)
        others, following = _page_tags(data, order, following, is_big)
        kind = others.get(_SUBFILE)
        pages += not (kind is not None and len(kind) and int(kind[0]) & (_REDUCED | _MASK))
    return tags, pages


def _page_tags(data: bytes, order: ByteOrder, at: int, is_big: bool) -> tuple[TiffTags, int]:
    """Return the tags of a page, and where the next page begins."""
    head, entry = (f"{order}Q", f"{order}HHQQ") if is_big else (f"{order}H", f"{order}HHII")
    count = struct.unpack_from(head, data, at)[0]
    if count > _MOST_TAGS:
        raise UndecodableImageError(f"its directory has {count} tags, more than {_MOST_TAGS}")
    first, size, room = at + struct.calcsize(head), struct.calcsize(entry), 8 if is_big else 4
    tags: TiffTags = {}
    for place in range(first, first + count * size, size):
        tag, kind, length, value = struct.unpack_from(entry, data, place)
        if kind not in _TIFF_TYPES:
            continue
        dtype = np.dtype(_TIFF_TYPES[kind]).newbyteorder(order)
        where = place + size - room if length * dtype.itemsize <= room else value
        if where + length * dtype.itemsize <= len(data):
            tags[tag] = np.frombuffer(data, dtype, length, where)
    following = struct.unpack_from(
        f"{order}Q" if is_big else f"{order}I", data, first + count * size
    )
    return tags, int(following[0])


def _declared(tags: TiffTags) -> float:
    """Return the largest value that a file declares its samples to have; 0 if it does not."""
    for tag in (_S_MAX_SAMPLE, _MAX_SAMPLE):
        value = tags.get(tag)
        if value is not None and len(value) and float(value.max()) > 0:
            return float(value.max())
    return 0.0


def _palette_bits(tags: TiffTags) -> int:
    palette = tags.get(_PALETTE)
    if palette is None or palette.dtype.itemsize < 2 or len(palette) % 3:  # noqa: PLR2004 - bytes
        return 0
    colors_NC = palette.reshape(3, -1).T.astype(np.uint16)
    apart, kept = (len(np.unique(each, axis=0)) for each in (colors_NC, colors_NC >> 8))
    return 16 if kept < apart else 0


def _no_data(tags: TiffTags) -> float | None:
    """Return the value of missing pixels, which GDAL notes as text."""
    try:
        return float(bytes(tags[_NO_DATA]).split(b"\0")[0])
    except (KeyError, ValueError):
        return None

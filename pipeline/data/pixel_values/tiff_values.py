"""The first page of a TIFF file: its tags, and values that image libraries would cut to 8 bits.

This module is copied into every packaged model.

TIFF Revision 6.0, Adobe, 1992, sections 14 and 19; TIFF Technical Note 3; BigTIFF as libtiff
defines it. libtiff, as Pillow brings it, unpacks the rows as plain bytes: the file is described to
it as a grey image of 8 bits with as many columns as a row has bytes. What the bytes mean, and the
predictor, is decided here. OpenCV reads neither two bands nor five, nor bands that are stored
apart.

H: height, W: width, N: samples per pixel.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from patchline.pipeline.data.pixel_values.pixel_mapping import (
    DeepFile,
    FileValues,
    UndecodableImageError,
    Values,
)

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

_GREY_OR_RGB = {-1: 1, 0: 1, 1: 1, 2: 3}
"""Number of colors for each photometric interpretation that is read here."""
_KINDS = {1: "u", 2: "i", 3: "f"}
_WIDTHS = {"u": (8, 16, 32, 64), "i": (8, 16, 32, 64), "f": (16, 32, 64)}
_MOST_PACKED_BITS = 24
_PLAIN_BITS = {1, 2, 4, 8}
_UNPACKED = {1, 5, 8, 32773, 32946, 34925, 50000}
"""None, LZW, Deflate, PackBits, Deflate again, LZMA, Zstandard: what keeps every bit."""
_HORIZONTAL, _FLOATING_POINT = 2, 3
_OPACITY = {1: "associated", 2: "straight"}


ByteOrder = Literal["<", ">"]
TiffTags = dict[int, np.ndarray[Any, Any]]


class TiffPage(NamedTuple):
    """What the tags of the first page state."""

    order: ByteOrder
    """`<` or `>`: the order of bytes."""
    pages: int
    """The number of pages in the file, without masks and smaller versions of an image."""
    width: int
    height: int
    bits: tuple[int, ...]
    """The bits of each sample of a pixel."""
    samples: int
    """The number of samples per pixel."""
    formats: tuple[int, ...]
    """1 for unsigned integers, 2 for signed ones, 3 for floating-point numbers."""
    photometric: int
    """0: grey, white is zero; 1: grey, black is zero; 2: RGB; -1 if it is not stated."""
    extra: tuple[int, ...]
    """The kind of each sample beyond the colors; 1 and 2 are opacity, 0 is not specified."""
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
        declared=_read_declared_maximum(tags),
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


def _read_declared_maximum(tags: TiffTags) -> float:
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


def deep_tiff(data: bytes) -> DeepFile | None:
    """Return a file whose first page image libraries do not read as it is meant; else None.

    Raises:
        UndecodableImageError: if it is of a kind that is not read.
    """
    page = tiff_page(data)
    if _is_plain(page):
        return None
    size, read = (page.width, page.height), partial(_tiff_values, data, page)
    return DeepFile.of(size, page.samples, read, _tiff_kind(page))


def _is_plain(page: TiffPage) -> bool:
    """Return whether image libraries read a page as it is meant.

    Raises:
        UndecodableImageError: if nobody does.
    """
    if page.is_raw:
        raise UndecodableImageError(
            "it is a camera's raw file, of which only a thumbnail is an image; develop it to TIFF, "
            "PNG or JPEG (darktable, RawTherapee, rawpy)"
        )
    if page.is_slide:
        raise UndecodableImageError(
            "it is a scan of a whole microscope slide; cut it into tiles (OpenSlide) and save them "
            "as PNG or TIFF"
        )
    deep = max(page.bits) > 8 or set(page.formats) != {1}  # noqa: PLR2004 - bits
    if page.photometric not in _GREY_OR_RGB:
        if deep and not (page.photometric == 5 and set(page.bits) == {16}):  # noqa: PLR2004 - CMYK
            raise UndecodableImageError(
                f"it has samples of {max(page.bits)} bits that are neither grey nor RGB "
                f"(photometric interpretation {page.photometric}); convert it to RGB"
            )
        return True
    known = _colors(page) + bool(_opacity(page))
    stated = page.photometric >= 0
    return not deep and set(page.bits) <= _PLAIN_BITS and page.samples == known and stated


def _tiff_values(data: bytes, page: TiffPage) -> FileValues:
    """Return the values of the first page.

    Raises:
        UndecodableImageError: if it is damaged, or of a kind that is not read.
    """
    samples_HWN = _samples(data, page)
    packed = samples_HWN.dtype.kind == "u" and page.bits[0] % 8
    return FileValues(
        samples_HWN,
        _colors(page),
        opacity=_opacity(page),
        declared=page.declared or (float((1 << page.bits[0]) - 1) if packed else 0.0),
        inverted=page.photometric == 0,
        no_data=page.no_data,
        pages=page.pages,
        orientation=page.orientation,
    )


def _tiff_kind(page: TiffPage) -> np.dtype[Any]:
    """Return the type of a page's values.

    Raises:
        UndecodableImageError: if it is not read.
    """
    kinds = {_KINDS.get(each) for each in page.formats}
    if len(kinds) > 1 or len(set(page.bits)) > 1:
        raise UndecodableImageError("its bands have different types; save them in files of one")
    kind, bits = kinds.pop(), page.bits[0]
    if kind is None:
        raise UndecodableImageError(
            f"nothing says what its samples are (sample format {page.formats[0]}); save it as "
            "integers or floating-point numbers"
        )
    if bits in _WIDTHS[kind]:
        return np.dtype(f"{kind}{bits // 8}")
    if kind == "u" and 0 < bits <= _MOST_PACKED_BITS:
        return np.dtype("u1" if bits < 8 else "u2" if bits <= 16 else "u4")  # noqa: PLR2004
    raise UndecodableImageError(f"its samples have {bits} bits; save it with 8, 16 or 32")


def _colors(page: TiffPage) -> int:
    """Return 1 for grey, 3 for RGB; a page that does not say has one, or three without others."""
    if page.photometric < 0 and page.samples == 3 and not page.extra:  # noqa: PLR2004 - RGB
        return 3
    return min(_GREY_OR_RGB[page.photometric], page.samples)


def _opacity(page: TiffPage) -> str:
    return _OPACITY.get(page.extra[0], "") if page.extra and page.samples > _colors(page) else ""


def _samples(data: bytes, page: TiffPage) -> Values:
    """Return all samples (H, W, N), in the machine's order of bytes."""
    if page.compression not in _UNPACKED:
        raise UndecodableImageError(
            f"its samples of {page.bits[0]} bits are compressed in a way that is not read "
            f"({page.compression}); save it with LZW, Deflate or no compression"
        )
    planes = page.samples if page.is_planar else 1
    per_plane = page.samples // planes
    count = len(page.blocks) // planes
    samples = [
        _plane(data, page, page.blocks[first * count : (first + 1) * count], per_plane)
        for first in range(planes)
    ]
    return samples[0] if planes == 1 else np.concatenate(samples, axis=2)


def _plane(data: bytes, page: TiffPage, blocks: Sequence[tuple[int, int]], n: int) -> Values:
    """Return the samples of a plane with `n` per pixel."""
    tile_height, tile_width = page.tile or (min(page.rows_per_strip, page.height), page.width)
    if not tile_height or not tile_width or not page.width or not page.height:
        raise UndecodableImageError("an image without pixels is not an image")
    across, down = -(-page.width // tile_width), -(-page.height // tile_height)
    blocks = blocks[: across * down]
    if len(blocks) < across * down or any(start + size > len(data) for start, size in blocks):
        raise UndecodableImageError("the file ends too early")
    row_bytes = -(-tile_width * n * page.bits[0] // 8)
    rows = down * tile_height if page.tile else page.height
    lengths = [size for _, size in blocks]
    starts = 8 + np.cumsum([0, *lengths[:-1]])
    form: dict[int, Any] = (
        {322: row_bytes, 323: tile_height, _TILES: starts, _TILE_BYTES: lengths}
        if page.tile
        else {_STRIPS: starts, 278: tile_height, _STRIP_BYTES: lengths}
    )
    form |= {256: across * row_bytes, 257: rows, 258: 8, 259: page.compression, 262: 1}
    form |= {266: page.fill_order, 277: 1}
    content = b"".join(data[start : start + size] for start, size in blocks)
    packed = _unpack(content, form).reshape(rows * across, row_bytes)
    samples = _meaning(packed, page, tile_width, n).reshape(rows, across * tile_width, n)
    return samples[: page.height, : page.width]


def _unpack(content: bytes, form: dict[int, Any]) -> Values:
    """Return rows of bytes (rows, bytes).

    Args:
        content: packed rows.
        form: the tags of a TIFF file in which they begin at byte 8.
    """
    at = 8 + len(content)
    tables = at + 2 + 12 * len(form) + 4
    directory, outside = struct.pack("<H", len(form)), b""
    for tag, value in sorted(form.items()):
        numbers = np.atleast_1d(value).astype("<u4").tobytes()
        directory += struct.pack("<HHI", tag, 4, len(numbers) // 4)
        if len(numbers) > 4:  # noqa: PLR2004 - bytes of an entry
            directory += struct.pack("<I", tables + len(outside))
            outside += numbers
        else:
            directory += numbers
    file = b"II*\0" + struct.pack("<I", at) + content + directory + bytes(4) + outside
    try:
        with Image.open(io.BytesIO(file), formats=("TIFF",)) as opened:
            return np.asarray(opened)
    except (OSError, ValueError, SyntaxError) as error:
        raise UndecodableImageError("its packed pixels are damaged or incomplete") from error


def _meaning(packed: Values, page: TiffPage, width: int, n: int) -> Values:
    """Return the samples (rows, width, n) of rows of bytes."""
    dtype, bits, rows = _tiff_kind(page), page.bits[0], len(packed)
    if bits % 8 or bits == 24:  # noqa: PLR2004 - no type has as many
        unpacked = np.unpackbits(np.ascontiguousarray(packed), axis=1)[:, : width * n * bits]
        weights = (1 << np.arange(bits - 1, -1, -1)).astype(np.uint32)
        summed = unpacked.reshape(rows, width * n, bits).astype(np.uint32) @ weights
        return summed.astype(dtype).reshape(rows, width, n)
    if page.predictor == _FLOATING_POINT:
        return _undo_float_predictor(packed, dtype, width, n)
    stored = np.ascontiguousarray(packed).view(dtype.newbyteorder(page.order))
    samples = stored.astype(dtype).reshape(rows, width, n)
    if page.predictor == _HORIZONTAL:
        whole = samples.view(f"u{dtype.itemsize}")
        return np.cumsum(whole, axis=1, dtype=whole.dtype).view(dtype)
    return samples


def _undo_float_predictor(packed: Values, dtype: np.dtype[Any], width: int, n: int) -> Values:
    """Undo the predictor that stores the bytes of floating-point numbers apart."""
    rows = len(packed)
    differences = packed.reshape(rows, -1, n)
    summed = np.cumsum(differences, axis=1, dtype=np.uint8)
    planes = summed.reshape(rows, dtype.itemsize, width * n)
    stored = np.ascontiguousarray(planes.transpose(0, 2, 1)).view(dtype.newbyteorder(">"))
    return stored.astype(dtype).reshape(rows, width, n)

"""Read the values of TIFF files that image libraries would cut to 8 bits, or not read at all.

This module is copied into every packaged model.

libtiff, as Pillow brings it, unpacks the rows as plain bytes: the file is described to it as a grey
image of 8 bits with as many columns as a row has bytes. What the bytes mean, and the predictor, is
decided here (TIFF Revision 6.0, Adobe, 1992, sections 14 and 19; TIFF Technical Note 3).

H: height, W: width, N: samples per pixel.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from patchline.pipeline.data.pixel_values.pixel_mapping import FileValues, Values
from patchline.pipeline.data.pixel_values.tiff_page import TiffPage, tiff_page
from patchline.pipeline.data.pixel_values.undecodable import UndecodableImageError

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


def is_plain_tiff(page: TiffPage) -> bool:
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


def tiff_values(data: bytes) -> FileValues:
    """Return the values of the first page.

    Raises:
        UndecodableImageError: if it is damaged, or of a kind that is not read.
    """
    page = tiff_page(data)
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


def tiff_kind(page: TiffPage) -> np.dtype[Any]:
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
    if len(blocks) < across * down or any(start + size > len(data) for start, size in blocks):
        raise UndecodableImageError("the file ends too early")
    row_bytes = -(-tile_width * n * page.bits[0] // 8)
    rows = down * tile_height if page.tile else page.height
    packed = _unpacked(data, page, blocks, (rows, across, row_bytes, tile_height))
    parts = [
        _meaning(packed[:, place * row_bytes : (place + 1) * row_bytes], page, tile_width, n)
        for place in range(across)
    ]
    whole = parts[0] if across == 1 else np.concatenate(parts, axis=1)
    return whole[: page.height, : page.width]


def _unpacked(
    data: bytes,
    page: TiffPage,
    blocks: Sequence[tuple[int, int]],
    shape: tuple[int, int, int, int],
) -> Values:
    """Return the rows of a plane as bytes (rows, bytes).

    Args:
        data: the file.
        page: its tags.
        blocks: the strips or tiles of the plane.
        shape: rows of the plane, tiles in a row, bytes in a row of a tile, rows of a tile.
    """
    rows, across, row_bytes, tile_height = shape
    blocks = blocks[: across * -(-rows // tile_height)]
    described = [(256, across * row_bytes), (257, rows), (258, 8), (259, page.compression)]
    described += [(262, 1), (266, page.fill_order), (277, 1)]
    count = len(blocks)
    starts, lengths = (324, 325) if page.tile else (273, 279)
    tags = described + (
        [(322, row_bytes), (323, tile_height), (324, 0), (325, 0)]
        if page.tile
        else [(273, 0), (278, tile_height), (279, 0)]
    )
    tables = 8 + 2 + 12 * len(tags) + 4
    content = b"".join(data[start : start + size] for start, size in blocks)
    ends = np.cumsum([0, *(size for _, size in blocks)])
    first = tables + 8 * count
    values = {starts: ends[:-1] + first, lengths: np.diff(ends)}
    directory = struct.pack("<H", len(tags))
    for tag, value in sorted(tags):
        where = {starts: tables, lengths: tables + 4 * count}.get(tag, value)
        if tag in values and count == 1:
            where = int(values[tag][0])
        directory += struct.pack("<HHII", tag, 4, count if tag in values else 1, where)
    arrays = b"".join(values[tag].astype("<u4").tobytes() for tag in (starts, lengths))
    file = b"II*\0" + struct.pack("<I", 8) + directory + bytes(4) + arrays + content
    try:
        with Image.open(io.BytesIO(file), formats=("TIFF",)) as opened:
            return np.asarray(opened)
    except (OSError, ValueError, SyntaxError) as error:
        raise UndecodableImageError("its packed pixels are damaged or incomplete") from error


def _meaning(packed: Values, page: TiffPage, width: int, n: int) -> Values:
    """Return the samples (rows, width, n) of rows of bytes."""
    dtype, bits, rows = tiff_kind(page), page.bits[0], len(packed)
    if bits % 8 or bits == 24:  # noqa: PLR2004 - no type has as many
        unpacked = np.unpackbits(np.ascontiguousarray(packed), axis=1)[:, : width * n * bits]
        weights = (1 << np.arange(bits - 1, -1, -1)).astype(np.uint32)
        summed = unpacked.reshape(rows, width * n, bits).astype(np.uint32) @ weights
        return summed.astype(dtype).reshape(rows, width, n)
    if page.predictor == _FLOATING_POINT:
        return _floating_point(packed, dtype, width, n)
    stored = np.ascontiguousarray(packed).view(dtype.newbyteorder(page.order))
    samples = stored.astype(dtype).reshape(rows, width, n)
    if page.predictor == _HORIZONTAL:
        whole = samples.view(f"u{dtype.itemsize}")
        return np.cumsum(whole, axis=1, dtype=whole.dtype).view(dtype)
    return samples


def _floating_point(packed: Values, dtype: np.dtype[Any], width: int, n: int) -> Values:
    """Undo the predictor that stores the bytes of floating-point numbers apart."""
    rows = len(packed)
    differences = packed.reshape(rows, -1, n)
    summed = np.cumsum(differences, axis=1, dtype=np.uint8)
    planes = summed.reshape(rows, dtype.itemsize, width * n)
    stored = np.ascontiguousarray(planes.transpose(0, 2, 1)).view(dtype.newbyteorder(">"))
    return stored.astype(dtype).reshape(rows, width, n)

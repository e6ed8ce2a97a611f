"""Image files of any type of values, written here byte by byte: their content is certain."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from patchline.pipeline.data.reading.decoding import UndecodableImageError, decode_image

Values = np.ndarray[Any, Any]
_FORMATS = {"u": 1, "i": 2, "f": 3}
_CODES = {1: "B", 2: "B", 3: "H", 4: "I"}


def png_file(values_HWN: Values, *, significant: int = 0, chunks: bytes = b"") -> bytes:
    """Return 16-bit values of 1, 2, 3 or 4 samples per pixel as a PNG file."""
    height, width, count = values_HWN.shape
    color = {1: 0, 2: 4, 3: 2, 4: 6}[count]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values_HWN)
    marked = png_chunk(b"sBIT", bytes([significant] * count)) if significant else b""
    header = struct.pack(">IIBBBBB", width, height, 16, color, 0, 0, 0)
    parts = [png_chunk(b"IHDR", header), marked, chunks, png_chunk(b"IDAT", zlib.compress(rows))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + png_chunk(b"IEND", b"")


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum


def tiff_file(
    values_HWN: Values,
    photometric: int | None = 1,
    extra: Sequence[int] | None = None,
    *,
    order: str = "<",
    planar: bool = False,
    tile: int = 0,
    deflate: bool = False,
    predictor: int = 1,
    tags: Mapping[int, tuple[int, Sequence[int]]] | None = None,
    pages: int = 1,
) -> bytes:
    """Return values as a TIFF file, in strips of three rows or in square tiles.

    Args:
        values_HWN: of any type.
        photometric: 0 or 1 for grey, 2 for RGB; None leaves it out.
        extra: what the samples beyond the colors are.
        order: of the bytes.
        planar: whether each band is stored by itself.
        tile: side of a tile; 0 for strips.
        deflate: whether the pixels are packed.
        predictor: 1, 2 for horizontal differences, 3 for floating-point numbers.
        tags: further ones: type and numbers.
        pages: how often the image is repeated.
    """
    height, width, count = values_HWN.shape
    kind, bits = values_HWN.dtype.kind, values_HWN.dtype.itemsize * 8
    blocks = [
        _block(part, order, predictor, deflate=deflate)
        for plane in (np.split(values_HWN, count, axis=2) if planar else [values_HWN])
        for part in _parts(plane, tile)
    ]
    given: dict[int, tuple[int, Sequence[int]]] = {
        256: (4, [width]),
        257: (4, [height]),
        258: (3, [bits] * count),
        259: (3, [8 if deflate else 1]),
        277: (3, [count]),
        284: (3, [2 if planar else 1]),
        317: (3, [predictor]),
        339: (3, [_FORMATS[kind]] * count),
        (324 if tile else 273): (4, [0] * len(blocks)),
        (325 if tile else 279): (4, [len(block) for block in blocks]),
        **({322: (4, [tile]), 323: (4, [tile])} if tile else {278: (4, [3])}),
        **({} if photometric is None else {262: (3, [photometric])}),
        **({} if extra is None else {338: (3, list(extra))}),
        **(tags or {}),
    }
    return _written(given, blocks, order, pages)


def _parts(plane_HWN: Values, tile: int) -> list[Values]:
    height, width, _ = plane_HWN.shape
    if not tile:
        return [plane_HWN[first : first + 3] for first in range(0, height, 3)]
    padded = np.pad(plane_HWN, ((0, -height % tile), (0, -width % tile), (0, 0)))
    corners = product(range(0, height, tile), range(0, width, tile))
    return [padded[top : top + tile, left : left + tile] for top, left in corners]


def _block(part: Values, order: str, predictor: int, *, deflate: bool) -> bytes:
    dtype, rows = part.dtype, len(part)
    if predictor == 2:
        whole = part.view(f"u{dtype.itemsize}")
        differences = np.diff(whole, axis=1, prepend=np.zeros_like(whole[:, :1]))
        content = differences.astype(differences.dtype.newbyteorder(order)).tobytes()
    elif predictor == 3:
        planes = np.frombuffer(part.astype(dtype.newbyteorder(">")).tobytes(), np.uint8)
        planes = planes.reshape(rows, -1, dtype.itemsize).transpose(0, 2, 1)
        whole = planes.reshape(rows, -1, part.shape[2])
        content = np.diff(whole, axis=1, prepend=np.zeros_like(whole[:, :1])).tobytes()
    else:
        content = part.astype(dtype.newbyteorder(order)).tobytes()
    return zlib.compress(content) if deflate else content


def _written(
    given: dict[int, tuple[int, Sequence[int]]], blocks: list[bytes], order: str, pages: int
) -> bytes:
    file = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8)
    for page in range(pages):
        tables = len(file) + 2 + 12 * len(given) + 4
        sizes = {tag: len(v) * struct.calcsize(_CODES[kind]) for tag, (kind, v) in given.items()}
        content = tables + sum(size for size in sizes.values() if size > 4)
        starts = [content + sum(map(len, blocks[:place])) for place in range(len(blocks))]
        entries, outside = b"", b""
        for tag, (kind, numbers) in sorted(given.items()):
            values = starts if tag in (273, 324) else numbers
            packed = struct.pack(f"{order}{len(values)}{_CODES[kind]}", *values)
            if len(packed) > 4:
                where = struct.pack(f"{order}I", tables + len(outside))
                outside += packed
            else:
                where = packed.ljust(4, b"\0")
            entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + where
        body = outside + b"".join(blocks)
        following = 0 if page == pages - 1 else tables + len(body)
        file += struct.pack(f"{order}H", len(given)) + entries
        file += struct.pack(f"{order}I", following) + body
    return file


def texture(rng: np.random.Generator, *, down: bool) -> Values:
    """Return stripes (16, 16) from 0 to 1."""
    line = np.sin(np.arange(16) * rng.uniform(0.9, 1.3) + rng.uniform(0, 6)) / 2 + 0.5
    stripes = np.tile(line, (16, 1)) if down else np.tile(line, (16, 1)).T
    whole: Values = np.clip(stripes * 0.8 + rng.normal(0.1, 0.05, (16, 16)), 0, 1)
    return whole


def write_files(
    place: Path | str, name: str, file_of: Callable[[Values], bytes], images: int = 6
) -> Path:
    """Write stripes of two classes, `across` and `down`, into files that the function makes."""
    root, rng = Path.cwd() / place, np.random.default_rng(0)
    for label in ("across", "down"):
        folder = root / label
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(images):
            content = file_of(texture(rng, down=label == "down"))
            (folder / name.format(number)).write_bytes(content)
    return root


def jpeg_2000_file(values_HWN: Values, bits: int = 16) -> bytes:
    """Return values of 9 to 16 bits as a lossless JPEG 2000 file of so many bits.

    OpenCV writes 16 bits; the header is then changed to fewer. Values are stored as differences
    from the middle of their range (ISO/IEC 15444-1, G.1.2), which moves with it.
    """
    moved = (values_HWN + ((1 << 15) - (1 << (bits - 1)))).astype(np.uint16)
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[values_HWN.shape[2]]
    lossless = [cv2.IMWRITE_JPEG2000_COMPRESSION_X1000, 1000]
    _, packed = cv2.imencode(".jp2", np.ascontiguousarray(moved[:, :, order]), lossless)
    data = bytearray(packed.tobytes())
    data[data.index(b"ihdr") + 14] = bits - 1
    sizes = data.index(b"\xff\x4f\xff\x51") + 42
    for component in range(values_HWN.shape[2]):
        data[sizes + 3 * component] = bits - 1
    return bytes(data)


def refused(reason: str, data: bytes, channels: int = 3, **more: Any) -> None:
    """Check that a file is refused with this reason."""
    with pytest.raises(UndecodableImageError, match=reason):
        decode_image(data, channels, **more)

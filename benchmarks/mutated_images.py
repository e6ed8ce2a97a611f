"""Image files that are damaged in many ways, each made from its number alone."""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

REFUSED_EACH = 100
_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF)
_HEADER = 160
_MOST_CHANGES = 5
_SAVED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("JPEG", "RGB", {"quality": 85}),
    ("JPEG", "RGB", {"quality": 60, "progressive": True}),
    ("JPEG", "L", {"quality": 95, "restart_marker_blocks": 4}),
    ("JPEG", "CMYK", {}),
    ("MPO", "RGB", {"save_all": True}),
    ("PNG", "RGB", {}),
    ("PNG", "RGBA", {}),
    ("PNG", "P", {}),
    ("PNG", "I;16", {}),
    ("PNG", "1", {}),
    ("PNG", "RGB", {"save_all": True}),
    ("GIF", "P", {}),
    ("GIF", "RGB", {"save_all": True}),
    ("BMP", "RGB", {}),
    ("BMP", "P", {}),
    ("WEBP", "RGB", {}),
    ("WEBP", "RGBA", {"lossless": True}),
    ("WEBP", "RGB", {"save_all": True}),
    *(("TIFF", "RGB", {"compression": name}) for name in ("raw", "tiff_lzw", "jpeg", "packbits")),
    ("TIFF", "RGBA", {"compression": "tiff_adobe_deflate"}),
    ("TIFF", "I;16", {}),
    ("TIFF", "F", {"compression": "tiff_deflate"}),
    ("TIFF", "1", {"compression": "group4"}),
    ("TIFF", "CMYK", {}),
    ("TIFF", "L", {"save_all": True, "big_tiff": True}),
    ("PPM", "RGB", {}),
    ("PPM", "L", {}),
    ("PPM", "1", {}),
    ("AVIF", "RGB", {"speed": 10}),
    ("AVIF", "RGBA", {"speed": 10}),
    ("JPEG2000", "RGB", {}),
    ("JPEG2000", "L", {"no_jp2": True, "irreversible": True}),
)
_REFUSED_SAVED = ("EPS", "PDF", "DDS", "ICNS", "ICO", "SGI", "PCX", "TGA", "IM", "SPIDER", "BLP")
_REFUSED_STARTS = {
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "PSD": b"8BPS\0\x01" + bytes(6) + struct.pack(">HIIHH", 3, 8, 8, 8, 3),
    "FITS": b"SIMPLE  =                    T".ljust(80) + b"BITPIX  =                    8",
    "WMF": b"\xd7\xcd\xc6\x9a\0\0" + bytes(34),
    "EMF": b"\x01\0\0\0" + bytes(36) + b" EMF" + bytes(44),
    "CUR": b"\0\0\x02\0\x01\0" + bytes(16),
    "FLI": bytes(4) + b"\x11\xaf" + bytes(120),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(56),
    "GRIB": b"GRIB\0\0\0\x01" + bytes(24),
    "BUFR": b"BUFR" + bytes(28),
    "MSP": b"DanM" + bytes(60),
    "XPM": b'/* XPM */\nstatic char *x[] = {\n"2 2 1 1",\n"a c #000000",\n"aa","aa"};\n',
    "XBM": b"#define x_width 8\n#define x_height 8\nstatic char x_bits[] = {\n0x00};\n",
    "Sun": b"\x59\xa6\x6a\x95" + struct.pack(">IIIIIII", 2, 2, 24, 12, 1, 0, 0),
    "PCD": bytes(2048) + b"PCD_" + bytes(2000),
    "MCIDAS": bytes(4) + struct.pack(">I", 4) + bytes(248),
    "FTEX": b"FTEX" + bytes(60),
    "QOI": b"qoif" + struct.pack(">IIBB", 4, 4, 3, 0) + bytes(16),
    "GBR": struct.pack(">II", 28, 2) + bytes(20) + b"GIMP",
    "DCX": b"\xb1\x68\xde\x3a" + bytes(60),
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "HEIF": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40),
    "MP4": b"\0\0\0\x18ftypmp42\0\0\0\0isommp42" + bytes(40),
    "MPEG": b"\0\0\x01\xb3" + bytes(40),
    "ZIP": b"PK\x03\x04" + bytes(60),
}


@cache
def whole_files() -> tuple[bytes, ...]:
    """Return an undamaged file for each format, mode and coding."""
    return tuple(_saved(name, mode, **options) for name, mode, options in _SAVED)


@cache
def refused_kinds() -> tuple[bytes, ...]:
    """Return a file of each format that is not read."""
    saved = (_saved(name, "P" if name == "BLP" else "RGB") for name in _REFUSED_SAVED[:-2])
    return (*saved, *_REFUSED_STARTS.values())


def case(number: int, count: int, seed: int) -> bytes:
    """Return the file of a number: mutated below `count`, of a refused format from there on."""
    rng = np.random.default_rng([seed, number])
    if number >= count:
        start = refused_kinds()[(number - count) // REFUSED_EACH]
        return start if number % REFUSED_EACH == 0 else mutated(start, rng, keep=48)
    files = whole_files()
    return mutated(files[number % len(files)], rng)


def _saved(name: str, mode: str, *, save_all: bool = False, **options: Any) -> bytes:
    rng = np.random.default_rng(len(mode))
    pixels = rng.integers(0, 256, (6, 8, 3), np.uint8)
    picture = Image.fromarray(pixels).resize((40, 28), Image.Resampling.BICUBIC)
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    else:
        picture = picture.convert(mode)
    if save_all:
        options |= {"save_all": True, "append_images": [picture.rotate(90), picture.rotate(180)]}
    file = io.BytesIO()
    picture.save(file, format=name, **options)
    return file.getvalue()


def mutated(data: bytes, rng: np.random.Generator, keep: int = 0) -> bytes:
    """Return a file with one to five changes behind its first `keep` bytes."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, _MOST_CHANGES + 1))):
        if len(changed) <= keep + 1:
            break
        _CHANGES[int(rng.integers(len(_CHANGES)))](changed, rng, keep)
    return bytes(changed)


def _place(data: bytearray, rng: np.random.Generator, keep: int) -> int:
    """Return a place, more often in the header."""
    end = min(len(data), _HEADER) if rng.random() < 0.5 and keep < _HEADER else len(data)  # noqa: PLR2004 - half
    return int(rng.integers(keep, max(keep + 1, end)))


def _cut(data: bytearray, rng: np.random.Generator, keep: int) -> None:
    ends = (b"", b"\xff\xd9", b"\0\0\0\0IEND\xaeB`\x82", b";")
    del data[_place(data, rng, keep) :]
    data += ends[int(rng.integers(len(ends)))]


def _flip(data: bytearray, rng: np.random.Generator, keep: int) -> None:
    data[min(_place(data, rng, keep), len(data) - 1)] ^= 1 << int(rng.integers(8))


def _zero(data: bytearray, rng: np.random.Generator, keep: int) -> None:
    start = _place(data, rng, keep)
    stop = min(len(data), start + int(rng.integers(1, 40)))
    data[start:stop] = bytes([int(rng.choice([0, 255]))]) * (stop - start)


def _repeat(data: bytearray, rng: np.random.Generator, keep: int) -> None:
    start = _place(data, rng, keep)
    data[start:start] = data[start : start + int(rng.integers(1, 200))]


def _insert(data: bytearray, rng: np.random.Generator, keep: int) -> None:
    start = _place(data, rng, keep)
    data[start:start] = rng.bytes(int(rng.integers(1, 60)))


def _remove(data: bytearray, rng: np.random.Generator, keep: int) -> None:
    start = _place(data, rng, keep)
    del data[start : start + int(rng.integers(1, 60))]


def _extreme(data: bytearray, rng: np.random.Generator, keep: int) -> None:
    """Set a field of one, two or four bytes to a number that nobody expects."""
    size = int(rng.choice([1, 2, 4]))
    value = int(rng.choice(_EXTREMES)) & ((1 << 8 * size) - 1)
    start = _place(data, rng, keep)
    data[start : start + size] = value.to_bytes(size, "big" if rng.random() < 0.5 else "little")  # noqa: PLR2004 - half


def _splice(data: bytearray, rng: np.random.Generator, keep: int) -> None:
    """Continue with the end of another file, or put one behind the other."""
    files = whole_files()
    other = files[int(rng.integers(len(files)))]
    start = _place(data, rng, keep) if rng.random() < 0.7 else len(data)  # noqa: PLR2004 - most
    data[start:] = other[int(rng.integers(len(other))) :]


_CHANGES = (_cut, _flip, _flip, _zero, _repeat, _insert, _remove, _extreme, _extreme, _splice)

"""Images and data sets that are damaged in many ways, each made from its number alone.

Image files of all formats; folders with names that nobody expects, zip and tar archives, compressed
tars, WebDataset shards, and tables, with damaged images, damaged containers, and members and cells
made to do harm.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import struct
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

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
    return tuple(_save(name, mode, **options) for name, mode, options in _SAVED)


@cache
def save_refused_kinds() -> tuple[bytes, ...]:
    """Return a file of each format that is not read."""
    saved = (_save(name, "P" if name == "BLP" else "RGB") for name in _REFUSED_SAVED[:-2])
    return (*saved, *_REFUSED_STARTS.values())


def image_case(number: int, count: int, seed: int) -> bytes:
    """Return the file of a number: mutated below `count`, of a refused format from there on."""
    rng = np.random.default_rng([seed, number])
    if number >= count:
        start = save_refused_kinds()[(number - count) // REFUSED_EACH]
        return start if number % REFUSED_EACH == 0 else mutate(start, rng, keep=48)
    files = whole_files()
    return mutate(files[number % len(files)], rng)


def _save(name: str, mode: str, *, save_all: bool = False, **options: Any) -> bytes:
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


def mutate(data: bytes, rng: np.random.Generator, keep: int = 0) -> bytes:
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


_TABLES = ("csv", "tsv", "jsonl", "parquet")
_EXPORTS = ("coco", "label_studio")
_ENCODED, _WORKBOOK = "encoded csv", "xlsx"
KINDS = (
    "folder", "zip", "tar", "tar.gz", "shards", *_TABLES, *_EXPORTS, _ENCODED, _WORKBOOK,
)  # fmt: skip
_ENCODINGS = (
    "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "latin-1",
    "cp932", "gb18030", "koi8-r", "cp037", "utf-7",
)  # fmt: skip
_DATE = (1980, 1, 1, 0, 0, 0)
_LARGE_SHEET = (
    b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><dimension '
    b'ref="A1:XFD1048576"/><sheetData><row r="1048576"><c r="XFD1048576"><v>1</v></c></row>'
    b"</sheetData></worksheet>"
)
_XMLS = (
    b"",
    b"<",
    b"<worksheet/>",
    b"\xff\xfe<\0",
    b"<a>" * 20_000,
    b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><x>&b;</x>',
    b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><worksheet>&a;</worksheet>',
    _LARGE_SHEET,
)
"""What may stand in a part of a workbook instead of its content."""
_IMAGES = 5
_SURE = 4
"""Images of a table that are whole."""
_HALF = 0.5
_LONG = 200
_MOST_CELL = 32_000
"""Characters of a cell of a workbook."""
_NAMES = (
    "plain.png", "sp ace .png", " .png", "new\nline.png", "\r\n.png", "tab\t.png", "😀🌷.png",
    "-rf.png", "--help.png", "\x1b[31mred.png", "\u202egnp.png", "\x7f.png", "$(touch x).png",
    "`id`.png", "a;b&c|d.png", "%s%n%d.png", "{0}{x}.png", "[bold]x.png", "'\".png",
    "<script>.png", "e\u0301.png", "\udcff\udcfe.png", "CON.png", "no_ending", "dots...png.",
    "x" * _LONG + ".png", ".hidden.png", "a.b.c.png", "label.cls", "0.json", "\u00a0.png",
)  # fmt: skip
_HARMFUL = (
    "../out.png", "../../../../opt/out.png", "/opt/out.png", "a/../../out.png", "C:\\out.png",
    "..\\out.png", "//host/out.png", "a//b/./c.png", "deep/" * 300 + "x.png", "y" * 5000, ".", "..",
    "a/", "~/out.png", "\\\\?\\out.png", "a\0b.png",
)  # fmt: skip
_TYPES = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
_LABELS = (
    b"0", b"rose", b"-1", b"", b"\xff\xfe", b"a\nb", b"9" * 5000, b"\x1b[31m", b"rose\0",
    "😀".encode(),
)  # fmt: skip
_JSONS = (
    b'{"label": "rose", "size": 3}', b'{"label": 1}', b"[" * 100_000, b"{", b"3", b"null",
    b'{"label": "\\ud800"}', b'{"\\ud800": 1, "label": "rose"}', b'{"label": NaN, "x": 1e400}',
    b'{"label": {"a": 1}}', b'{"label": "rose", "": 0}', b'{"label": ' + b"9" * 5000 + b"}",
)  # fmt: skip
_CELLS: tuple[Any, ...] = (
    "", " ", "rose", "0", 0, -1, 1.5, float("nan"), float("inf"), None, True, "nan", "None", "\0",
    "a\nb", "\x1b[31m", "\udcff", "=1+1", '"', "'", ",", "\t", "😀", "9" * 400, 2**63 - 1, b"\xff",
    "../out.png", "/etc/passwd", "file:///etc/passwd", "file://host/x.png", "file://%00",
    "http://x/y.png", "images", "images/", ".", "..", "~", "C:\\out.png", "x" * 5000,
    "images/0.png/", "images//0.png", "rose|tulip", "rose tulip", '["rose", "tulip"]', "[]",
    "['rose']", "[" * 3000, "[[1]]", "|", "a|" * 3000, ["rose", "tulip"], [], {"choices": ["rose"]},
)  # fmt: skip
_COLUMNS = (
    "image", "label", "file", "path", "class", "split", "group", "", " ", "Unnamed: 0", "label",
    "bytes", "a\nb", "\x1b[31m", "sha256", "status", "😀", "x" * 300,
)  # fmt: skip


class DataCase(NamedTuple):
    """A data set to read."""

    path: Path
    kind: str
    whole: int | None
    """The number of files that have to be named where the container is whole; else None."""
    settings: tuple[tuple[str, str], ...] = ()
    """Of the data, by name."""


class _Member(NamedTuple):
    name: str
    content: bytes
    kind: bytes = tarfile.REGTYPE


def write_case(number: int, seed: int, folder: Path) -> DataCase:
    """Write the data set of a number into an empty folder."""
    rng = np.random.default_rng([seed, number])
    kind = KINDS[number % len(KINDS)]
    if kind == "folder":
        return _write_folder(rng, folder / "data")
    if kind in _EXPORTS:
        return _write_export(rng, kind, folder)
    if kind in (*_TABLES, _ENCODED, _WORKBOOK):
        return _write_table(rng, kind, folder)
    harmful = rng.random() < _HALF
    members = _shard_members(rng) if kind == "shards" else _members(rng)
    names = {member.name for member in members}
    members += _harmful_members(rng, is_zip=kind == "zip") if harmful else []
    packed = _zip(members) if kind == "zip" else _tar(members)
    damaged = rng.random() < _HALF
    if damaged and kind != "zip" and rng.random() < _HALF:
        packed = _change_header(packed, rng)
    elif damaged and kind != "tar.gz":
        packed = mutate(packed, rng)
    if kind == "tar.gz":
        packed = gzip.compress(packed, mtime=0)
        packed = mutate(packed, rng) if damaged else packed
    whole = None if damaged or harmful or kind == "shards" else len(names)
    if kind == "shards":
        (folder / "data").mkdir(parents=True)
        (folder / "data/train-000000.tar").write_bytes(packed)
        return DataCase(folder / "data", kind, whole)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"data.{kind}"
    file.write_bytes(packed)
    return DataCase(file, kind, whole)


@cache
def _fast_files() -> tuple[bytes, ...]:
    """Return the undamaged images of the formats that are read fastest."""
    return tuple(data for data in whole_files() if b"ftypavif" not in data[:32])


def _image(rng: np.random.Generator) -> bytes:
    files = _fast_files()
    data = files[int(rng.integers(len(files)))]
    return mutate(data, rng) if rng.random() < _HALF else data


def _name(rng: np.random.Generator) -> str:
    return _NAMES[int(rng.integers(len(_NAMES)))]


def _members(rng: np.random.Generator) -> list[_Member]:
    """Return two classes of images; the names of each are distinct, and none is hidden."""
    found = [_Member(f"{label}/first.png", whole_files()[5]) for label in ("rose", "tulip")]
    for number in range(_IMAGES):
        name = f"{number}{_name(rng)}"
        found.append(_Member(f"{('rose', 'tulip')[number % 2]}/{name}", _image(rng)))
    return found


def _shard_members(rng: np.random.Generator) -> list[_Member]:
    found = [_Member("first.png", whole_files()[5]), _Member("first.cls", b"rose")]
    for number in range(_IMAGES):
        key = f"{number}{_name(rng).partition('.')[0]}"
        found.append(_Member(f"{key}.png", _image(rng)))
        texts, ending = (_LABELS, "cls") if rng.random() < _HALF else (_JSONS, "json")
        found.append(_Member(f"{key}.{ending}", texts[int(rng.integers(len(texts)))]))
    return found


def _harmful_members(rng: np.random.Generator, *, is_zip: bool) -> list[_Member]:
    name = _HARMFUL[int(rng.integers(len(_HARMFUL)))]
    found = [_Member(name.replace("\0", "") if not is_zip else name, _image(rng))]
    if not is_zip:
        found.append(_Member("rose/link.png", b"", _TYPES[int(rng.integers(len(_TYPES)))]))
    return found


def _tar(members: list[_Member]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", errors="surrogateescape") as archive:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.type, info.size, info.linkname = member.kind, len(member.content), "/etc/passwd"
            archive.addfile(info, io.BytesIO(member.content))
    return packed.getvalue()


def _zip(members: list[_Member]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in members:
            name = member.name.encode("utf-8", "replace").decode()
            archive.writestr(zipfile.ZipInfo(name), member.content)
    return packed.getvalue()


def _change_header(packed: bytes, rng: np.random.Generator) -> bytes:
    """Change a field of a tar header, and make its checksum right again."""
    changed = bytearray(packed)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        offsets = [info.offset for info in archive]
    start = offsets[int(rng.integers(len(offsets)))]
    header = changed[start : start + tarfile.BLOCKSIZE]
    place, size = ((0, 100), (100, 8), (124, 12), (156, 1), (157, 100), (345, 155))[
        int(rng.integers(6))
    ]
    values = (
        b"\xff" * size,
        b"\x80" + b"\x7f" * (size - 1),
        b"7" * size,
        rng.bytes(size),
        bytes(size),
        b"-1".ljust(size, b"\0")[:size],
        b"xgLKSVNDM"[int(rng.integers(9)) :][:1].ljust(size, b"\0"),
    )
    header[place : place + size] = values[int(rng.integers(len(values)))]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % (sum(header) & 0o777777)
    changed[start : start + tarfile.BLOCKSIZE] = header
    return bytes(changed)


def _write_folder(rng: np.random.Generator, folder: Path) -> DataCase:
    """Write two class folders of files with odd names."""
    written = set()
    for number, member in enumerate(_members(rng)):
        label, _, name = member.name.partition("/")
        place = os.fsencode(folder / f"{number % 2}{_name(rng)[:40]}" / label)
        os.makedirs(place, exist_ok=True)  # noqa: PTH103 - names are bytes
        file = os.path.join(place, os.fsencode(name))  # noqa: PTH118
        with open(file, "wb") as opened:  # noqa: PTH123
            opened.write(member.content)
        written.add(file)
    return DataCase(folder, "folder", len(written))


def _write_table(rng: np.random.Generator, kind: str, folder: Path) -> DataCase:
    """Write a table beside the images that some of its rows name."""
    (folder / "images").mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    embedded = kind == "parquet" and rng.random() < _HALF
    for number in range(2 * _IMAGES):
        name, content = f"{number}.png", whole_files()[5] if number < _SURE else _image(rng)
        (folder / "images" / name).write_bytes(content)
        image: Any = (f"images/{name}", f"./images/{name}", name)[int(rng.integers(3))]
        if embedded:
            image = {"bytes": content, "path": name}
        rows.append({"image": image, "label": ("rose", "tulip")[number % 2]})
    for _ in range(int(rng.integers(4))):
        column = _one_of(_COLUMNS, rng)
        for row in rows[int(rng.integers(2)) :]:
            row[column] = _one_of(_CELLS, rng)
    for _ in range(int(rng.integers(6))):
        row = rows[int(rng.integers(len(rows)))]
        row[_one_of(tuple(row), rng)] = _one_of(_CELLS, rng)
    settings: tuple[tuple[str, str], ...] = ()
    if kind == _ENCODED:
        encoding = _one_of(_ENCODINGS, rng)
        packed = _text_table(rows, "csv").decode("utf-8", "replace").encode(encoding, "replace")
        if rng.random() < _HALF:
            named = encoding if rng.random() < _HALF else _one_of(_ENCODINGS, rng)
            settings = (("encoding", named),)
    elif kind == _WORKBOOK:
        packed = _workbook(rows, rng)
    else:
        packed = _parquet(rows) if kind == "parquet" else _text_table(rows, kind)
    file = folder / f"data.{kind.rpartition(' ')[2]}"
    file.write_bytes(mutate(packed, rng) if rng.random() < _HALF else packed)
    return DataCase(file, kind, None, settings)


def _workbook(rows: list[dict[str, Any]], rng: np.random.Generator) -> bytes:
    """Write the first sheet of a workbook, and put something else into some of its parts."""
    import openpyxl
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    def cell(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        text = str(value).encode("utf-8", "replace").decode()[:_MOST_CELL]
        return ILLEGAL_CHARACTERS_RE.sub("", text)

    workbook = openpyxl.Workbook()
    columns = list({column: None for row in rows for column in row})
    workbook.active.append([cell(column) for column in columns])
    for row in rows:
        workbook.active.append([cell(row.get(column)) for column in columns])
    if rng.random() < _HALF / 2:
        workbook.create_sheet("more").append(["1"])
    saved, written = io.BytesIO(), io.BytesIO()
    workbook.save(saved)
    odd = rng.random() < _HALF
    with zipfile.ZipFile(saved) as read, zipfile.ZipFile(written, "w") as packed:
        names = [name for name in read.namelist() if name != "docProps/core.xml"]
        replaced = names[int(rng.integers(len(names)))] if odd else ""
        for name in names:
            content = _one_of(_XMLS, rng) if name == replaced else read.read(name)
            packed.writestr(zipfile.ZipInfo(name, _DATE), content)
    return written.getvalue()


def _write_export(rng: np.random.Generator, kind: str, folder: Path) -> DataCase:
    """Write the export of a labelling tool with values of other types in it."""
    (folder / "images").mkdir(parents=True)
    names = [f"{number}.png" for number in range(2 * _IMAGES)]
    for name in names:
        (folder / "images" / name).write_bytes(whole_files()[5])
    content: Any
    if kind == "coco":
        content = {
            "images": [{"id": n, "file_name": name} for n, name in enumerate(names)],
            "annotations": [{"image_id": n, "category_id": n % 2} for n in range(len(names))],
            "categories": [{"id": 0, "name": "rose"}, {"id": 1, "name": "tulip"}],
        }
    else:
        content = []
        for number, name in enumerate(names):
            chosen = {"choices": ["rose", "tulip"][: number % 3]}
            result = {"type": "choices", "from_name": "c", "value": chosen}
            data = {"image": f"/data/upload/1/{name}"}
            content.append({"data": data, "annotations": [{"result": [result]}]})
    for _ in range(int(rng.integers(4))):
        _spoil(content, rng)
    packed = json.dumps(content, default=repr).encode("utf-8", "surrogateescape")
    file = folder / "data.json"
    file.write_bytes(mutate(packed, rng) if rng.random() < _HALF else packed)
    return DataCase(file, kind, None)


def _spoil(content: Any, rng: np.random.Generator) -> None:
    """Replace one value somewhere in a content by one of another kind."""
    while True:
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        if not keys:
            return
        key = keys[int(rng.integers(len(keys)))]
        if not isinstance(content[key], dict | list) or rng.random() < 0.1:  # noqa: PLR2004 - few
            content[key] = _one_of(_CELLS, rng)
            return
        content = content[key]


def _one_of(values: tuple[Any, ...], rng: np.random.Generator) -> Any:
    return values[int(rng.integers(len(values)))]


def _text_table(rows: list[dict[str, Any]], kind: str) -> bytes:
    written = io.StringIO(newline="")
    if kind == "jsonl":
        written.writelines(json.dumps(row, default=repr) + "\n" for row in rows)
    else:
        columns = list({column: None for row in rows for column in row})
        table = csv.DictWriter(written, columns, delimiter="," if kind == "csv" else "\t")
        table.writeheader()
        table.writerows(rows)
    return written.getvalue().encode("utf-8", "surrogateescape")


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    """Write columns of one type each; cells of another type are written as texts."""
    written = io.BytesIO()
    columns = list({column: None for row in rows for column in row})
    arrays = []
    for column in columns:
        cells = [row.get(column) for row in rows]
        try:
            arrays.append(pa.array(cells))
        except (pa.ArrowException, UnicodeError, OverflowError):
            texts = (str(cell).encode("utf-8", "replace").decode() for cell in cells)
            arrays.append(pa.array(list(texts)))
    parquet.write_table(pa.Table.from_arrays(arrays, names=columns), written)
    return written.getvalue()

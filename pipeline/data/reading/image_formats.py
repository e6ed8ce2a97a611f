"""The supported image formats, recognised by the first bytes of a file.

A file is passed only to the decoder of its own format, and only if that format is listed here, so
no file can reach a decoder that starts a program, as PostScript's does.
"""

from __future__ import annotations

import functools
import importlib.util
import zlib

HEAD_BYTES = 352
"""Number of bytes at the start of a file that are needed to recognise its format."""

_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"\xff\x4f\xff\x51", "JPEG2000"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG2000"),
    *((b"P%d" % number, "PPM") for number in range(1, 7)),
)
_FTYP_BRANDS = {b"avif": "AVIF", b"avis": "AVIF"}

_REFUSED_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"%!PS", "PostScript"),
    (b"\xc5\xd0\xd3\xc6", "PostScript"),
    (b"%PDF", "PDF"),
    (b"8BPS", "Photoshop"),
    (b"DDS ", "DDS"),
    (b"BLP1", "BLP"),
    (b"BLP2", "BLP"),
    (b"SIMPLE  =", "FITS"),
    (b"\xd7\xcd\xc6\x9a", "WMF"),
    (b"\x01\0\x09\0\0\x03", "WMF"),
    (b"icns", "ICNS"),
    (b"\0\0\x01\0", "ICO"),
    (b"\0\0\x02\0", "CUR"),
    (b"qoif", "QOI"),
    (b"\x01\xda", "SGI"),
    (b"\x59\xa6\x6a\x95", "Sun raster"),
    (b"\x0a\x05\x01", "PCX"),
    (b"\xb1\x68\xde\x3a", "DCX"),
    (b"FTEX", "FTEX"),
    (b"GRIB", "GRIB"),
    (b"BUFR", "BUFR"),
    (b"\x89HDF\r\n\x1a\n", "HDF5"),
    (b"/* XPM */", "XPM"),
    (b"DanM", "MSP"),
    (b"LinS", "MSP"),
    (b"<svg", "SVG"),
    (b"AT&TFORM", "DjVu"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
    (b"v/1\x01", "OpenEXR"),
    (b"#?RADIANCE", "Radiance HDR"),
    (b"#?RGBE", "Radiance HDR"),
    (b"\x93NUMPY", "NumPy"),
    (b"MATLAB 5.0 MAT-file", "MATLAB"),
    (b"NRRD000", "NRRD"),
    (b"ObjectType =", "MetaImage"),
    (b"Pf\n", "PFM"),
    (b"PF\n", "PFM"),
    (b"P7\n", "PAM"),
    (b"ZISRAWFILE", "Zeiss CZI"),
    (b"\xda\xce\xbe\x0a", "Nikon ND2"),
    *((start, "Camera raw") for start in (b"FUJIFILMCCD-RAW", b"IIRO", b"IIRS", b"MMOR")),
    *((start, "Camera raw") for start in (b"IIU\0", b"FOVb")),
)
_REFUSED_LATER: tuple[tuple[int, bytes, str], ...] = (
    (4, b"ftypcrx ", "Camera raw"),
    (40, b" EMF", "EMF"),
    (128, b"DICM", "DICOM"),
    (344, b"n+1\0", "NIfTI"),
    (344, b"ni1\0", "NIfTI"),
)
"""Where the bytes are that mark a format, if not at the start."""
_GZIP = b"\x1f\x8b\x08"
_TO_TIFF = "save the values as 16-bit PNG or as TIFF"
_SLICES = f"{_TO_TIFF}, a file for each slice"
REMEDIES = {
    "HEIF": ("(.heic) need pillow-heif", "pip install 'patchline[heic]', or convert to JPEG"),
    "DICOM": ("need pydicom", f"{_TO_TIFF}, and set a window with data.value_range"),
    "NIfTI": ("need nibabel", _SLICES),
    "NRRD": ("need pynrrd or SimpleITK", _SLICES),
    "MetaImage": ("need SimpleITK", _SLICES),
    "Camera raw": ("need rawpy, darktable or RawTherapee", "develop them to TIFF or JPEG"),
    "OpenEXR": ("need the library OpenEXR", "save the values as floating-point TIFF"),
    "Radiance HDR": ("need imageio", "save the values as floating-point TIFF"),
    "PFM": ("are not supported", "save the values as floating-point TIFF"),
    "PAM": ("are not supported", "convert them to PNG"),
    "NumPy": ("are not supported", "save each image as PNG, or as TIFF if it has other values"),
    "MATLAB": ("need scipy", _TO_TIFF),
    "HDF5": ("need h5py", f"{_TO_TIFF}, a file for each image"),
    "FITS": ("need astropy", _TO_TIFF),
    "Zeiss CZI": ("need pylibCZIrw or Bio-Formats", _TO_TIFF),
    "Nikon ND2": ("need nd2 or Bio-Formats", _TO_TIFF),
    "Photoshop": ("need psd-tools", "save the picture as PNG"),
    "SVG": ("are drawings", "render them to PNG, with Inkscape or CairoSVG"),
}
"""What formats need, and what to do: those with a library of their own, or whose values matter."""
_HEIF_BRANDS = {b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"}
_BOX_TYPE, _BOX_BRAND, _BOX_BRANDS = slice(4, 8), slice(8, 12), slice(16, HEAD_BYTES)


def format_of(head: bytes) -> str | None:
    """Return Pillow's name of the format of a file, if it is supported."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if head[_BOX_TYPE] == b"ftyp":
        # An AVIF file may have a generic major brand and list its own as a compatible brand.
        if _FTYP_BRANDS.keys() & _brands(head):
            return "AVIF"
        return "HEIF" if _HEIF_BRANDS & _brands(head) and reads_heif() else None
    return next((name for start, name in _STARTS if head.startswith(start)), None)


def find_refused_format(head: bytes) -> str | None:
    """Return the common name of an image format that is known but not supported."""
    if format_of(head) is not None:
        return None
    if head[_BOX_TYPE] == b"ftyp" and _HEIF_BRANDS & _brands(head):
        return "HEIF"
    unpacked = _gunzip(head)
    for place, mark, name in _REFUSED_LATER:
        if unpacked[place : place + len(mark)] == mark:
            return name
    text = head.lstrip()
    named = (name for start, name in _REFUSED_STARTS if head.startswith(start))
    return next(named, "SVG" if text.startswith(b"<?xml") and b"<svg" in text else None)


def why_not_read(head: bytes) -> str:
    """Return the reason why a file is not read, and the remedy."""
    name = find_refused_format(head)
    if name is None:
        return "not an image that can be read"
    if name in REMEDIES:
        need, remedy = REMEDIES[name]
        return f"{name} files {need}: {remedy}"
    return f"{name} files are not supported; convert the file to PNG or JPEG"


@functools.cache
def reads_heif() -> bool:
    """Return whether the package is installed that reads the photographs of many phones."""
    return importlib.util.find_spec("pillow_heif") is not None


def _gunzip(head: bytes) -> bytes:
    """Return the start of what a gzip file holds; that of another file as it is."""
    if not head.startswith(_GZIP):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except zlib.error:
        return head


def _brands(head: bytes) -> set[bytes]:
    length = min(int.from_bytes(head[:4], "big"), len(head))
    others = head[_BOX_BRANDS.start : length]
    return {head[_BOX_BRAND], *(others[at : at + 4] for at in range(0, len(others), 4))}

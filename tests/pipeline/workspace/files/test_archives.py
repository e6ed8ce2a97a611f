"""Archives: what is read from them, and what an archive made to do harm cannot do."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from patchline.pipeline.config_files import build_config
from patchline.pipeline.data.manifests.source_listing import listing_of
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files import archive_members
from patchline.pipeline.workspace.files.archive_members import Archive, MemberError
from patchline.pipeline.workspace.files.archives import open_archive, readable_archive
from patchline.pipeline.workspace.files.tar_archive import READ_ERRORS

Files = dict[str, bytes]


def zip_of(file: Path, files: Files, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """Write a zip archive."""
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file


def tar_of(file: Path, files: Files, *special: tarfile.TarInfo) -> Path:
    """Write an uncompressed tar archive, with members that have no content behind the files."""
    with tarfile.open(file, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in special:
            archive.addfile(info)
    return file


def special(name: str, kind: bytes, bytes_: int = 0) -> tarfile.TarInfo:
    """Return a member of a tar archive that is not a file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, "/etc/passwd", bytes_
    return info


def content(archive: Archive, path: str) -> bytes:
    """Return the content of a file."""
    with archive.open(path) as opened:
        return opened.read()


@pytest.mark.parametrize("make", [zip_of, tar_of])
def test_files_are_read_in_place(tmp_path: Path, make: Callable[[Path, Files], Path]) -> None:
    """Names and contents are those that were packed, whatever their characters; hidden ones not.

    Each of several threads gets the content of its own file.
    """
    files = {"rose/1 a.jpg": os.urandom(5000), "rose/\n-🌹.jpg": b"x" * 9000, "./tulip//2.png": b""}
    files |= {f"a/{number}": os.urandom(20_000) for number in range(20)}
    hidden = {"__MACOSX/rose/._1.jpg": b"m", "rose/.DS_Store": b"d", ".git/config": b"g"}
    archive = open_archive(make(tmp_path / "photos.archive", {**files, **hidden}))
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda path: content(archive, path), archive.paths * 3))
    assert read == list(files.values()) * 3
    assert archive.paths[:3] == ["rose/1 a.jpg", "rose/\n-🌹.jpg", "tulip/2.png"]
    assert [archive.size_of(path) for path in archive.paths[:3]] == [5000, 9000, 0]
    assert archive.refused == []
    with pytest.raises(MemberError, match="not in the archive"):
        archive.open("rose/2.jpg")


@pytest.mark.parametrize("make", [zip_of, tar_of])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("rose/../../1.jpg", "its path leads outside the archive"),
        ("..\\..\\1.jpg", "its path leads outside the archive"),
        ("/etc/passwd", "its path is absolute"),
        ("C:\\1.jpg", "its path is absolute"),
        ("a/" * 3000 + "1.jpg", "its path has more than 4096 characters"),
    ],
)
def test_path_that_leads_elsewhere_is_refused(
    tmp_path: Path, make: Callable[[Path, Files], Path], name: str, reason: str
) -> None:
    """Such a member is named with the reason, and the others are read."""
    archive = open_archive(make(tmp_path / "photos.archive", {"rose/1.jpg": b"1", name: b"2"}))
    assert archive.paths == ["rose/1.jpg"]
    assert [member.reason for member in archive.refused] == [reason]


def test_links_and_devices_of_a_tar_are_refused(tmp_path: Path) -> None:
    """Nothing but regular files and folders is read."""
    odd = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
    members = (special(f"rose/{number}", kind) for number, kind in enumerate(odd))
    archive = open_archive(tar_of(tmp_path / "photos.tar", {"rose/1.jpg": b"1"}, *members))
    assert (archive.paths, archive.folders) == (["rose/1.jpg"], ["rose/4"])
    link, other = "is a link; links in archives are not followed", "not a regular file"
    assert [member.reason for member in archive.refused] == [link, link, other, other]


def test_links_and_odd_compression_of_a_zip_are_refused(tmp_path: Path) -> None:
    """A symbolic link, a device and a member compressed with LZMA are named with the reason.

    An archive whose members all need a password is refused in a sentence.
    """
    file = tmp_path / "photos.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("rose/1.jpg", b"1")
        archive.writestr("rose/2.jpg", b"2" * 100, zipfile.ZIP_LZMA)
        for name, kind in (("rose/3.jpg", stat.S_IFLNK), ("rose/4.jpg", stat.S_IFCHR)):
            info = zipfile.ZipInfo(name)
            info.external_attr = (kind | 0o644) << 16
            archive.writestr(info, "/etc/passwd")
    found = open_archive(file)
    assert found.paths == ["rose/1.jpg"]
    assert [member.reason for member in found.refused] == [
        "is compressed with lzma; only deflate is read from a zip",
        "is a link; links in archives are not followed",
        "not a regular file",
    ]
    data = bytearray(zip_of(file, {"rose/1.jpg": b"1"}).read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"is encrypted, .* Unpack it and pass the folder\.$"):
        open_archive(file)


def test_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive that unpacks to far more than its own size is not read, packed in any way."""
    monkeypatch.setattr(archive_members, "ALWAYS_ALLOWED_BYTES", 1_000_000)
    zeros = bytes(4_000_000)
    packed = zip_of(tmp_path / "bomb.zip", {"rose/1.png": zeros})
    with pytest.raises(DataError, match=r"like a decompression bomb\. .* unpack it"):
        open_archive(packed)
    tar_of(tmp_path / "bomb.tar", {"rose/1.png": zeros})
    (tmp_path / "bomb.tar.gz").write_bytes(gzip.compress((tmp_path / "bomb.tar").read_bytes()))
    with pytest.raises(DataError, match="like a decompression bomb"):
        readable_archive(tmp_path / "bomb.tar.gz", tmp_path / "work")
    assert list((tmp_path / "work").glob("*.tar")) == []
    assert list((tmp_path / "work").glob(".*.part")) == []


def test_member_that_unpacks_to_more_than_it_states_is_damaged(tmp_path: Path) -> None:
    """Not more than the stated size is ever unpacked."""
    file = zip_of(tmp_path / "photos.zip", {"rose/1.png": bytes(1_000_000)})
    data = bytearray(file.read_bytes())
    struct.pack_into("<L", data, data.index(b"PK\x01\x02") + 24, 1000)
    file.write_bytes(data)
    archive = open_archive(file)
    with archive.open("rose/1.png") as opened, pytest.raises(zipfile.BadZipFile):
        opened.read(1001)


def test_overlapping_members_are_refused(tmp_path: Path) -> None:
    """A zip whose members share their bytes, as some bombs do, is damaged."""
    file = zip_of(tmp_path / "photos.zip", {"a/1.png": os.urandom(900)}, zipfile.ZIP_STORED)
    data = file.read_bytes()
    start, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    entry = data[start:end]
    both = entry + entry.replace(b"a/1.png", b"a/2.png")
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 2, 2, len(both), start, 0)
    file.write_bytes(data[:start] + both + tail)
    with pytest.raises(DataError, match="its members overlap"):
        open_archive(file)


@pytest.mark.parametrize("make", [zip_of, tar_of])
def test_absurd_number_of_members_is_refused(
    tmp_path: Path, make: Callable[[Path, Files], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count is limited before the names are held in memory."""
    monkeypatch.setattr(archive_members, "MOST_MEMBERS", 20)
    monkeypatch.setattr("patchline.pipeline.workspace.files.archives.MOST_MEMBERS", 20)
    files = {f"a/{number}": b"" for number in range(20)}
    assert len(open_archive(make(tmp_path / "some", files)).paths) == 20
    with pytest.raises(DataError, match=r"more than 20 files .* Unpack it and pass the folder\.$"):
        open_archive(make(tmp_path / "many", {**files, "b/1": b""}))


def test_tar_with_an_absurd_header_is_damaged(tmp_path: Path) -> None:
    """A header that claims gigabytes, or thousands of headers for one file, end in a sentence."""
    pax = special("pax", tarfile.XHDTYPE, 1 << 40).tobuf(tarfile.GNU_FORMAT) + bytes(10_240)
    name = special("name", tarfile.GNUTYPE_LONGNAME, 512).tobuf(tarfile.GNU_FORMAT) + b"a" * 512
    for content in (pax, name * 5000, b"<html>Not found</html>" * 100):
        (tmp_path / "a.tar").write_bytes(content)
        with pytest.raises(DataError, match=r"a\.tar is damaged, or is not an archive"):
            open_archive(tmp_path / "a.tar")


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_damaged_archives_end_in_a_sentence(tmp_path: Path, kind: str) -> None:
    """Cut or flipped bytes never crash: a sentence, or a member that cannot be read."""
    files = {f"rose/{number}.jpg": os.urandom(700) for number in range(6)}
    whole = (zip_of if kind == "zip" else tar_of)(tmp_path / "whole", files).read_bytes()
    whole = gzip.compress(whole, mtime=0) if kind == "tar.gz" else whole
    draw, sentences = np.random.default_rng(0), list[str]()
    file = tmp_path / f"a.{kind}"
    for number in range(60):
        data = bytearray(whole)
        if number % 3 == 0:
            data = data[: int(draw.integers(1, len(data)))]
        for _ in range(int(draw.integers(1, 20))):
            data[int(draw.integers(len(data)))] = int(draw.integers(256))
        file.write_bytes(data)
        try:
            archive = open_archive(readable_archive(file, tmp_path / "work"))
            for path in archive.paths:
                content(archive, path)
        except DataError as error:
            sentences.append(str(error))
        except (MemberError, zipfile.BadZipFile, *READ_ERRORS):
            pass  # one file of the archive is damaged
    assert len(sentences) > 4
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences)
    assert {path.name for path in tmp_path.iterdir()} <= {"whole", "work", file.name}


def test_compressed_tar_is_unpacked_once(tmp_path: Path) -> None:
    """The same content is found again under any name, and a killed process leaves nothing."""
    tar = tar_of(tmp_path / "photos.tar", {"rose/1.jpg": b"1"}).read_bytes()
    work, packed, other = (tmp_path / name for name in ("work", "photos.tgz", "other.tar.gz"))
    work.mkdir()
    (work / ".half.tar.12345678.part").write_bytes(b"half")
    packed.write_bytes(gzip.compress(tar, mtime=0))
    first = readable_archive(packed, work)
    written = first.stat().st_mtime_ns
    packed.rename(other)
    assert readable_archive(other, work) == first
    assert first.read_bytes() == tar
    assert first.stat().st_mtime_ns == written
    assert list(work.glob(".*.part")) == []
    other.write_bytes(gzip.compress(tar * 2, mtime=0))
    assert readable_archive(other, work) != first


def test_changed_archive_is_opened_again(tmp_path: Path) -> None:
    """An archive that is written again is not read from memory."""
    file = zip_of(tmp_path / "photos.zip", {"rose/1.jpg": b"1"})
    assert open_archive(file) is open_archive(file)
    zip_of(file, {"rose/1.jpg": b"one", "rose/2.jpg": b"2"})
    assert open_archive(file).paths == ["rose/1.jpg", "rose/2.jpg"]


def _zip_of_names(file: Path, *names: bytes) -> Path:
    """Write a zip whose names are stored as these bytes, without a word about their encoding."""
    with zipfile.ZipFile(file, "w") as archive:
        for number, name in enumerate(names):
            archive.writestr(zipfile.ZipInfo(f"{number}".rjust(len(name), "Q")), b"x")
    content = file.read_bytes()
    for number, name in enumerate(names):
        content = content.replace(f"{number}".rjust(len(name), "Q").encode(), name)
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(
    ("stored", "given", "used"),
    [("utf-8", None, "UTF-8"), ("cp437", None, "cp437"), ("cp1252", "cp1252", "cp1252")],
)
def test_names_of_a_zip_without_an_encoding(
    tmp_path: Path, stored: str, given: str | None, used: str
) -> None:
    """They are UTF-8 if they can be, as the Finder of macOS writes them; which, is said."""
    names = ["M\u00fcller/1.jpg", "J\u00fcrgen/22.jpg"]
    file = _zip_of_names(tmp_path / "a.zip", *(name.encode(stored) for name in names))
    root = readable_archive(file, tmp_path, given)
    archive = open_archive(root)
    assert archive.paths == names
    assert f"read as {used}: 'M\u00fcller/1.jpg'" in archive.note
    assert content(archive, names[1]) == b"x"
    _zip_of_names(file, "J\u00fcrgen/333.jpg".encode(stored))  # replaced, with the same encoding
    assert open_archive(root).paths == ["J\u00fcrgen/333.jpg"]


def test_encoding_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """The name and the setting are named; names that declare an encoding are not affected."""
    file = _zip_of_names(tmp_path / "a.zip", "M\u00fcller/1.jpg".encode())
    with pytest.raises(DataError, match=r"data\.name_encoding is ascii, but the name b'M"):
        readable_archive(file, tmp_path, "ascii")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("M\u00fcller/1.jpg", b"x")
    assert readable_archive(tmp_path / "b.zip", tmp_path, "cp437") == tmp_path / "b.zip"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_are_there_several_times_are_said(tmp_path: Path) -> None:
    """The last file is read, as unpacking does; the source says so."""
    file, members = tmp_path / "photos.zip", zip((*"aba",), (b"old", b"b", b"new"), strict=True)
    with zipfile.ZipFile(file, "w") as packed:
        for folder, data in members:
            packed.writestr(f"{folder}/1.png", data)
    archive = open_archive(file)
    assert archive.repeated == ["a/1.png"]
    assert content(archive, "a/1.png") == b"new"
    [note] = listing_of(build_config(str(file), preset_name="none"), tmp_path / "work").notes
    assert note.startswith("1 name is in the archive several times, such as a/1.png: of each, the")


def test_archives_that_were_joined_are_refused(tmp_path: Path) -> None:
    """After the end of the first one, nothing would be read."""
    one, two = (tar_of(tmp_path / f"{n}.tar", {f"a/{n}.png": b"x"}) for n in range(2))
    joined = tmp_path / "joined.tar"
    joined.write_bytes(one.read_bytes() + two.read_bytes())
    with pytest.raises(DataError, match=r"the next one begins at byte 10,240, .* --ignore-zeros"):
        open_archive(joined)


def test_names_of_a_tar_in_another_encoding(tmp_path: Path) -> None:
    """Without the setting they are named; with it, they are read."""
    file = tmp_path / "a.tar"
    with tarfile.open(file, "w", encoding="cp1252", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("M\u00fcller/1.jpg"), io.BytesIO())
    assert "1 name is not UTF-8, such as b'M\\xfcller" in open_archive(file).note
    named = open_archive(readable_archive(file, tmp_path, "cp1252"))
    assert named.paths == ["M\u00fcller/1.jpg"]

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

from patchline.pipeline.config_files import requested
from patchline.pipeline.data.manifests.source_listing import listing_of
from patchline.pipeline.errors import DataError
from patchline.pipeline.files import archive_members
from patchline.pipeline.files.archive_members import Archive, MemberError
from patchline.pipeline.files.archives import open_archive, readable_archive
from patchline.pipeline.files.compression import READ_ERRORS

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


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """Return a member of a tar archive that is not a file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def content(archive: Archive, path: str) -> bytes:
    """Return the content of a file."""
    with archive.open(path) as opened:
        return opened.read()


def reasons(archive: Archive) -> dict[str, str]:
    """Return why members are refused."""
    return {member.path: member.reason for member in archive.refused}


@pytest.mark.parametrize("make", [zip_of, tar_of])
def test_files_are_read_in_place(tmp_path: Path, make: Callable[[Path, Files], Path]) -> None:
    """Names and contents are those that were packed, whatever their characters; hidden ones not."""
    files = {"rose/1 a.jpg": os.urandom(5000), "rose/\n-🌹.jpg": b"x" * 9000, "./tulip//2.png": b""}
    hidden = {"__MACOSX/rose/._1.jpg": b"m", "rose/.DS_Store": b"d", ".git/config": b"g"}
    archive = open_archive(make(tmp_path / "photos.archive", {**files, **hidden}))
    read = {path: content(archive, path) for path in archive.paths}
    assert read == {path.replace("./", "").replace("//", "/"): data for path, data in files.items()}
    assert [archive.size_of(path) for path in archive.paths] == [5000, 9000, 0]
    assert archive.refused == []
    with pytest.raises(MemberError, match="not in the archive"):
        archive.open("rose/2.jpg")


@pytest.mark.parametrize("make", [zip_of, tar_of])
def test_several_threads_read_at_once(tmp_path: Path, make: Callable[[Path, Files], Path]) -> None:
    """Each thread gets the content of its own file."""
    files = {f"a/{number}": os.urandom(20_000) for number in range(40)}
    archive = open_archive(make(tmp_path / "photos.archive", files))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda path: content(archive, path), list(files) * 5))
    assert found == list(files.values()) * 5


@pytest.mark.parametrize("make", [zip_of, tar_of])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../../etc/passwd", "its path leads outside the archive"),
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
    assert list(reasons(archive).values()) == [reason]


def test_links_and_devices_of_a_tar_are_refused(tmp_path: Path) -> None:
    """Nothing but regular files and folders is read."""
    file = tar_of(
        tmp_path / "photos.tar",
        {"rose/1.jpg": b"1"},
        special("rose/2.jpg", tarfile.SYMTYPE, "/etc/passwd"),
        special("rose/3.jpg", tarfile.LNKTYPE, "rose/1.jpg"),
        special("rose/4.jpg", tarfile.CHRTYPE),
        special("rose/5.jpg", tarfile.FIFOTYPE),
        special("tulip", tarfile.DIRTYPE),
    )
    archive = open_archive(file)
    assert (archive.paths, archive.folders) == (["rose/1.jpg"], ["tulip"])
    link = "is a link; links in archives are not followed"
    assert list(reasons(archive).values()) == [
        link,
        link,
        "not a regular file",
        "not a regular file",
    ]


def test_links_and_odd_compression_of_a_zip_are_refused(tmp_path: Path) -> None:
    """A symbolic link, a device and a member compressed with LZMA are named with the reason."""
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
    assert reasons(found) == {
        "rose/2.jpg": "is compressed with lzma; only deflate is read from a zip",
        "rose/3.jpg": "is a link; links in archives are not followed",
        "rose/4.jpg": "not a regular file",
    }


def test_encrypted_zip_is_refused(tmp_path: Path) -> None:
    """An archive whose members all need a password is refused in a sentence."""
    data = bytearray(zip_of(tmp_path / "photos.zip", {"rose/1.jpg": b"1"}).read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "photos.zip").write_bytes(data)
    with pytest.raises(DataError, match=r"is encrypted, .* Unpack it and pass the folder\.$"):
        open_archive(tmp_path / "photos.zip")


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
    monkeypatch.setattr("patchline.pipeline.files.zip_archive.MOST_MEMBERS", 20)
    files = {f"a/{number}": b"" for number in range(20)}
    assert len(open_archive(make(tmp_path / "some", files)).paths) == 20
    with pytest.raises(DataError, match=r"more than 20 files .* Unpack it and pass the folder\.$"):
        open_archive(make(tmp_path / "many", {**files, "b/1": b""}))


def test_tar_with_an_absurd_header_is_damaged(tmp_path: Path) -> None:
    """A header that claims gigabytes, or thousands of headers for one file, end in a sentence."""
    info = special("pax", tarfile.XHDTYPE)
    info.size = 1 << 40
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(10_240))
    long_name = special("name", tarfile.GNUTYPE_LONGNAME)
    long_name.size = 512
    block = long_name.tobuf(tarfile.GNU_FORMAT) + b"a" * 512
    (tmp_path / "b.tar").write_bytes(block * 5000)
    for name in ("a.tar", "b.tar"):
        with pytest.raises(DataError, match="is damaged, or is not an archive"):
            open_archive(tmp_path / name)


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_damaged_archives_end_in_a_sentence(tmp_path: Path, kind: str) -> None:
    """Cut or flipped bytes never crash: a sentence, or a member that cannot be read."""
    files = {f"rose/{number}.jpg": os.urandom(700) for number in range(6)}
    whole = (zip_of if kind == "zip" else tar_of)(tmp_path / "whole", files).read_bytes()
    whole = gzip.compress(whole, mtime=0) if kind == "tar.gz" else whole
    draw = np.random.default_rng(0)
    sentences = []
    for number in range(150):
        data = bytearray(whole)
        if number % 3 == 0:
            data = data[: int(draw.integers(len(data)))]
        for _ in range(int(draw.integers(1, 20)) if data else 0):
            data[int(draw.integers(len(data)))] = int(draw.integers(256))
        file = tmp_path / f"{number}.{kind}"
        file.write_bytes(data)
        try:
            archive = open_archive(readable_archive(file, tmp_path / "work"))
            for path in archive.paths:
                content(archive, path)
        except DataError as error:
            sentences.append(str(error))
        except (MemberError, zipfile.BadZipFile, *READ_ERRORS):
            pass  # one file of the archive is damaged
    assert len(sentences) > 20
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences)
    outside = {path.name for path in tmp_path.iterdir()} - {f"{n}.{kind}" for n in range(150)}
    assert outside <= {"whole", "work"}


def test_compressed_tar_is_unpacked_once(tmp_path: Path) -> None:
    """The same content is found again under any name, and a killed process leaves nothing."""
    tar = tar_of(tmp_path / "photos.tar", {"rose/1.jpg": b"1"}).read_bytes()
    work = tmp_path / "work"
    work.mkdir()
    (work / ".half.tar.12345678.part").write_bytes(b"half")
    (tmp_path / "photos.tgz").write_bytes(gzip.compress(tar, mtime=0))
    first = readable_archive(tmp_path / "photos.tgz", work)
    written = first.stat().st_mtime_ns
    (tmp_path / "photos.tgz").rename(tmp_path / "other.tar.gz")
    assert readable_archive(tmp_path / "other.tar.gz", work) == first
    assert first.read_bytes() == tar
    assert first.stat().st_mtime_ns == written
    assert list(work.glob(".*.part")) == []
    (tmp_path / "other.tar.gz").write_bytes(gzip.compress(tar * 2, mtime=0))
    assert readable_archive(tmp_path / "other.tar.gz", work) != first


def test_changed_archive_is_opened_again(tmp_path: Path) -> None:
    """An archive that is written again is not read from memory."""
    file = zip_of(tmp_path / "photos.zip", {"rose/1.jpg": b"1"})
    assert open_archive(file) is open_archive(file)
    zip_of(file, {"rose/1.jpg": b"one", "rose/2.jpg": b"2"})
    assert open_archive(file).paths == ["rose/1.jpg", "rose/2.jpg"]


@pytest.mark.parametrize("name", ["photos.zip", "photos.tar", "photos.tar.gz"])
def test_what_is_no_archive_is_refused(tmp_path: Path, name: str) -> None:
    """A file that only its name makes an archive is named, with a remedy."""
    (tmp_path / name).write_bytes(b"<html>Not found</html>" * 100)
    with pytest.raises(DataError, match=rf"{name} is damaged, or is not an archive .* again, or"):
        open_archive(readable_archive(tmp_path / name, tmp_path / "work"))


def test_member_without_a_name_is_passed_over(tmp_path: Path) -> None:
    """A zip may hold a member whose name is empty; it is no file and no reason to stop."""
    data = zip_of(tmp_path / "photos.zip", {"x": b"1", "rose/1.jpg": b"2"}).read_bytes()
    (tmp_path / "photos.zip").write_bytes(data.replace(b"x", b"\0"))
    archive = open_archive(tmp_path / "photos.zip")
    assert (archive.paths, archive.refused) == (["rose/1.jpg"], [])


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
    [
        ("utf-8", None, "UTF-8"),
        ("cp437", None, "cp437"),
        ("cp1252", "cp1252", "cp1252"),
        ("utf-8", "utf-8", "utf-8"),
    ],
)
def test_names_of_a_zip_without_an_encoding(
    tmp_path: Path, stored: str, given: str | None, used: str
) -> None:
    """They are UTF-8 if they can be, as the Finder of macOS writes them; which, is said."""
    names = ("M\u00fcller/1.jpg", "J\u00fcrgen/22.jpg")
    file = _zip_of_names(tmp_path / "a.zip", *(name.encode(stored) for name in names))
    archive = open_archive(readable_archive(file, tmp_path, given))
    assert archive.paths == list(names)
    assert f"read as {used}: 'M\u00fcller/1.jpg'" in archive.note
    with archive.open(names[1]) as opened:
        assert opened.read() == b"x"


def test_encoding_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """The name and the setting are named; names that declare an encoding are not affected."""
    file = _zip_of_names(tmp_path / "a.zip", "M\u00fcller/1.jpg".encode())
    with pytest.raises(DataError, match=r"data\.name_encoding is ascii, but the name b'M"):
        readable_archive(file, tmp_path, "ascii")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("M\u00fcller/1.jpg", b"x")
    assert readable_archive(tmp_path / "b.zip", tmp_path, "cp437") == tmp_path / "b.zip"


def test_names_of_a_tar_in_another_encoding(tmp_path: Path) -> None:
    """Without the setting they are named; with it, they are read."""
    file = tmp_path / "a.tar"
    with tarfile.open(file, "w", encoding="cp1252", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("M\u00fcller/1.jpg"), io.BytesIO())
    assert "1 name is not UTF-8, such as b'M\\xfcller" in open_archive(file).note
    named = open_archive(readable_archive(file, tmp_path, "cp1252"))
    assert named.paths == ["M\u00fcller/1.jpg"]


def test_archive_with_named_encoding_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """The file that states the encoding stays the same while the archive is replaced."""
    file = _zip_of_names(tmp_path / "a.zip", "M\u00fcller/1.jpg".encode("cp1252"))
    root = readable_archive(file, tmp_path, "cp1252")
    assert open_archive(root).paths == ["M\u00fcller/1.jpg"]
    _zip_of_names(file, "J\u00fcrgen/22.jpg".encode("cp1252"))
    assert open_archive(root).paths == ["J\u00fcrgen/22.jpg"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_names_that_are_there_several_times_are_said(tmp_path: Path, suffix: str) -> None:
    """The last file is read, as unpacking does; the source says so."""
    file = tmp_path / f"photos{suffix}"
    files = [("a/1.png", b"old"), ("b/1.png", b"b"), ("a/1.png", b"new"), ("a/1.png", b"newest")]
    if suffix == ".zip":
        with zipfile.ZipFile(file, "w") as packed:
            for name, data in files:
                packed.writestr(name, data)
    else:
        with tarfile.open(file, "w") as tar:
            for name, data in files:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    archive = open_archive(file)
    assert archive.repeated == ["a/1.png"]
    assert content(archive, "a/1.png") == b"newest"
    [note] = listing_of(requested(str(file), preset_name="none"), tmp_path / "work").notes
    assert note.startswith("1 name is in the archive several times, such as a/1.png: of each, the")


def test_archives_that_were_joined_are_refused(tmp_path: Path) -> None:
    """After the end of the first one, nothing would be read."""
    one, two = (tar_of(tmp_path / f"{n}.tar", {f"a/{n}.png": b"x"}) for n in range(2))
    joined = tmp_path / "joined.tar"
    joined.write_bytes(one.read_bytes() + two.read_bytes())
    with pytest.raises(DataError, match=r"the next one begins at byte 10,240, .* --ignore-zeros"):
        open_archive(joined)

"""Files are found in one order, whatever the folder looks like, one folder at a time."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.packaging.prediction.image_files import (
    check_images,
    count_images,
    find_images,
)
from patchline.pipeline.workspace.address import parse_address
from patchline.plugins.stores.objects import RemoteStore


def _write(root: Path, *names: str) -> Path:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    return root


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_members_of_an_archive_come_in_the_order_of_their_paths(
    tmp_path: Path, suffix: str
) -> None:
    """As the files of a folder do; refused members are among them, with the reason."""
    shown = ["a/2.png", "a/10.png", "a-b/1.png", "a.png", "b.png"]
    root = _write(tmp_path / "photos", *shown, ".hidden.png", "a/.x")
    archive = tmp_path / f"photos{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as opened:
            for name in (*sorted(shown, reverse=True), ".hidden.png"):
                opened.write(root / name, name)
            opened.writestr("../outside.png", b"x")
    else:
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(root, ".")
            packed.addfile(tarfile.TarInfo("../outside.png"))
    found = list(find_images([archive, root]))
    assert count_images([archive, root]) == len(found) == 11
    places = [file.place for file in found]
    assert places == sorted(places)
    members = [file.name for file in found if file.archive and not file.error]
    assert members == [str(archive / name) for name in map(str, sorted(map(Path, shown)))]
    [refused] = [file for file in found if file.error]
    assert "outside.png" in refused.name


def _names(*given: Path) -> list[str]:
    found = [file.name for file in find_images(given)]
    check_images(given)
    assert count_images(given) == len(found)
    return found


def test_files_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    """The order is that of sorted paths, odd ones too; what is hidden is passed over."""
    odd = ["50/inside.png", "line\nbreak.png", 'quote".png', "ü.png", "50.png"]
    shown = ["a/2.png", "a/10.png", "a-b/1.png", "a.png", "B/x/y/z.png", "b.png", *odd]
    root = _write(tmp_path / "photos", *shown, ".hidden.png", ".cache/1.png", "a/.x")
    assert _names(root) == [str(path) for path in sorted(root / name for name in shown)]
    places = [file.place for file in find_images([root])]
    assert places == sorted(places)


def test_paths_are_spelled_as_they_were_given(tmp_path: Path) -> None:
    """A relative folder gives relative names, and several arguments keep their order."""
    _write(tmp_path, "z/1.png", "a/2.png")  # the working directory of a test
    assert _names(Path("z"), Path("a"), Path("z/1.png")) == ["z/1.png", "a/2.png", "z/1.png"]
    assert _names(Path()) == ["a/2.png", "z/1.png"]


def test_linked_folders_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    """A link to a folder above is not; broken links and pipes, which would wait, are nothing."""
    root = _write(tmp_path / "photos", "a/1.png")
    other = _write(tmp_path / "other", "2.png")
    for link, target in (
        (root / "linked", other),
        (root / "a" / "up", root),
        (root / "self", root / "self"),
        (root / "gone", tmp_path / "nothing"),
        (other / "back", root),
    ):
        link.symlink_to(target)
    os.mkfifo(root / "pipe.png")
    assert [Path(name).name for name in _names(root)] == ["1.png", "2.png"]


def test_a_name_that_is_not_utf8_can_be_shown(tmp_path: Path) -> None:
    """Its bytes are written out, and its path still opens."""
    root = _write(tmp_path / "photos", "1.png")
    with open(os.fsencode(root) + b"/\xff.png", "wb") as file:  # noqa: PTH123 - a name in bytes
        file.write(b"odd")
    odd = list(find_images([root]))[-1]
    assert odd.name.endswith("\\udcff.png")
    assert Path(odd.path).read_bytes() == b"odd"


def test_a_locked_folder_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that may not be opened stands for its files, and the others are listed."""
    root = _write(tmp_path / "photos", "a/1.png", "b/2.png")
    scandir = os.scandir

    def locked_folder(folder: str) -> Iterator[os.DirEntry[str]]:
        if Path(folder).name == "a":  # root, as tests may run, can open every real one
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", locked_folder)
    locked, other = find_images([root])
    assert "the folder cannot be opened: Permission denied" in locked.error
    assert (other.name, other.error) == (str(root / "b/2.png"), "")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "No images given"),
        (["none.png"], "There is no file or folder none.png. Check the path."),
        (["empty"], "The folder empty holds no images. Add some, or give another folder."),
        (["1.png", "empty"], "The folder empty holds no images."),
        (["labels.csv"], r"labels\.csv is a table, .* Give the files it names"),
        (["parts"], "parts is a table, not an image or a folder"),
        (["none.zip"], r"The archive none\.zip holds no images\. Add some"),
        (["broken.zip"], r"broken\.zip"),
    ],
)
def test_what_holds_no_image_is_named(tmp_path: Path, given: list[str], sentence: str) -> None:
    """A missing path, a table and an empty folder are errors, also beside good ones."""
    _write(tmp_path, "1.png", "empty/.hidden", "labels.csv")
    _write(tmp_path / "parts", "train-0.parquet", "train-1.parquet")
    zipfile.ZipFile("none.zip", "w").close()
    Path("broken.zip").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(DataError, match=sentence):
        check_images([Path(path) for path in given])


def test_images_on_an_object_store_have_their_addresses(bucket: str, tmp_path: Path) -> None:
    """Files, folders and archives are downloaded; their names are their addresses."""
    store = RemoteStore(parse_address(f"s3://{bucket}/photos", "x"))
    names = ("a/1.png", "a/2.png", "b.png")
    for name in names:
        store.write(name, name.encode())
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("3.png", b"three")
    store.upload(tmp_path / "c.zip", "c.zip")
    given = [Path(f"{store.uri}/{name}") for name in ("a", "b.png", "c.zip")]
    check_images(given)
    assert count_images(given) == 4
    files = list(find_images(given))
    assert [file.name for file in files] == [
        f"{store.uri}/{name}" for name in (*names, "c.zip/3.png")
    ]
    assert [Path(file.path).read_bytes() for file in files[:3]] == [name.encode() for name in names]
    with pytest.raises(DataError, match="There is nothing at"):
        check_images([Path(f"s3://{bucket}/none")])
    with pytest.raises(ConfigError, match=f"Write s3://{bucket}/a, if"):
        check_images([Path(f"s3//{bucket}/a")])


def test_tables_and_files_of_other_programs_are_not_predicted(tmp_path: Path) -> None:
    """In folders and archives, as a run skips them; a file that is named is."""
    shown = ("1.png", "2.dat", "a/@3.jpg", "scan")
    hidden = (
        *("labels.json", "metadata.CSV", "data.yaml", "README.md", "metadata.jsonl"),
        *("_classes.csv", "_annotations.coco.json", "Thumbs.db", "#recycle/2.jpg"),
    )
    root = _write(tmp_path / "photos", *shown, *hidden, "a/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg")
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", root))
    for given in (root, archive):
        assert _names(given) == [str(given / name) for name in shown]
    assert _names(root / "README.md") == [str(root / "README.md")]

"""Files are found in one order, whatever the folder looks like, one folder at a time."""

from __future__ import annotations

import errno
import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.prediction.image_files import check_images, count_images, find_images
from patchline.pipeline.workspace.address import parsed
from patchline.pipeline.workspace.remote_store import RemoteStore


def _write(root: Path, *names: str) -> Path:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    return root


def test_table_alone_is_refused(tmp_path: Path) -> None:
    """A table is no image; among other files it is one that cannot be read."""
    _write(tmp_path, "labels.csv", "1.jpg")
    with pytest.raises(DataError, match=r"labels\.csv is a table, .* Give the files it names"):
        check_images([tmp_path / "labels.csv"])
    check_images([tmp_path / "labels.csv", tmp_path / "1.jpg"])


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz"])
def test_members_of_an_archive_come_in_the_order_of_their_paths(
    tmp_path: Path, suffix: str
) -> None:
    """As the files of a folder do; refused members are among them, with the reason."""
    shown = ["a/2.png", "a/10.png", "a-b/1.png", "a.png", "b.png"]
    root = _write(tmp_path / "photos", *shown, ".hidden.png", "a/.x")
    archive = tmp_path / f"photos{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as opened:
            for name in sorted(shown, reverse=True):
                opened.write(root / name, name)
            opened.writestr(".hidden.png", b"x")
            opened.writestr("../outside.png", b"x")
    else:
        with tarfile.open(archive, "w:gz" if suffix.endswith("gz") else "w") as opened:
            opened.add(root, ".")
            link = tarfile.TarInfo("../outside.png")
            opened.addfile(link, io.BytesIO(b""))
    found = list(find_images([archive, root]))
    assert count_images([archive, root]) == len(found) == 11
    check_images([archive, root])
    places = [file.place for file in found]
    assert places == sorted(places)
    assert [file.name for file in found if file.archive and not file.error] == [
        str(archive / name) for name in map(str, sorted(map(Path, shown)))
    ]
    [refused] = [file for file in found if file.error]
    assert "outside.png" in refused.name


def test_an_archive_without_files_is_refused(tmp_path: Path) -> None:
    """It is named as an archive; one that cannot be read has its own sentence."""
    with zipfile.ZipFile(tmp_path / "none.zip", "w"):
        pass
    with pytest.raises(DataError, match=r"The archive .*none\.zip holds no images\. Add some"):
        check_images([tmp_path / "none.zip"])
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(DataError, match=r"broken\.zip"):
        check_images([tmp_path / "broken.zip"])


def _names(*given: Path, without: tuple[Path, ...] = ()) -> list[str]:
    found = [file.name for file in find_images(given, without)]
    check_images(given, without)
    assert count_images(given, without) == len(found)
    return found


def test_files_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    """The order is that of sorted paths; hidden files and folders are passed over."""
    shown = ["a/2.png", "a/10.png", "a-b/1.png", "a.png", "B/x/y/z.png", "b.png"]
    root = _write(tmp_path / "photos", *shown, ".hidden.png", ".cache/1.png", "a/.x")
    expected = sorted(root / name for name in shown)
    assert _names(root) == [str(path) for path in expected]
    places = [file.place for file in find_images([root])]
    assert places == sorted(places)


def test_paths_are_spelled_as_they_were_given(tmp_path: Path) -> None:
    """A relative folder gives relative names, and several arguments keep their order."""
    _write(tmp_path, "z/1.png", "a/2.png")  # the working directory of a test
    assert _names(Path("z"), Path("a"), Path("z/1.png")) == ["z/1.png", "a/2.png", "z/1.png"]
    assert _names(Path()) == ["a/2.png", "z/1.png"]


def test_odd_names_have_their_place_in_the_order(tmp_path: Path) -> None:
    """Names with line breaks, quotes and umlauts, and a folder between files, are sorted too."""
    root = _write(tmp_path / "many", *(f"{(i * 37) % 100:02d}.png" for i in range(100)))
    _write(root, "50/inside.png", "line\nbreak.png", 'quote".png', "ü.png")
    found = _names(root)
    assert len(found) == 104
    assert found == sorted(found, key=lambda name: Path(name).parts)


def test_the_walk_is_lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is opened only once the files before it have been taken."""
    root = _write(tmp_path / "photos", *(f"{folder}/1.png" for folder in "abc"))
    opened: list[str] = []
    scandir = os.scandir

    def recording(folder: str) -> Iterator[os.DirEntry[str]]:
        opened.append(Path(folder).name)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", recording)
    files = find_images([root])
    next(files)
    assert opened == ["photos", "a"]


def test_linked_folders_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    """A link to a folder is walked, one to a folder above is not, and broken links are nothing."""
    root = _write(tmp_path / "photos", "a/1.png")
    other = _write(tmp_path / "other", "2.png")
    (root / "linked").symlink_to(other)
    (root / "a" / "up").symlink_to(root)
    (root / "self").symlink_to(root / "self")
    (root / "gone").symlink_to(tmp_path / "nothing")
    (other / "back").symlink_to(root)
    assert [Path(name).name for name in _names(root)] == ["1.png", "2.png"]


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    """A pipe is not opened, which would wait for ever."""
    root = _write(tmp_path / "photos", "1.png")
    os.mkfifo(root / "pipe.png")
    assert [Path(name).name for name in _names(root)] == ["1.png"]


def test_named_paths_are_left_out(tmp_path: Path) -> None:
    """The table and its parts are not taken for images when they lie in the folder."""
    root = _write(tmp_path / "photos", "1.png", "out.bin", "out.bin.parts/state.json", "a/out.bin")
    left_out = (root / "out.bin", root / "out.bin.parts")
    names = [str(Path(name).relative_to(root)) for name in _names(root, without=left_out)]
    assert names == ["1.png", "a/out.bin"]


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
    ],
)
def test_what_holds_no_image_is_named(tmp_path: Path, given: list[str], sentence: str) -> None:
    """A missing path and an empty folder are errors, also beside good ones."""
    _write(tmp_path, "1.png", "empty/.hidden")
    with pytest.raises(DataError, match=sentence):
        check_images([Path(path) for path in given])


def test_files_of_other_programs_are_not_predicted(tmp_path: Path) -> None:
    """Thumbnails of network storage are skipped in folders and archives, as a run skips them."""
    root = tmp_path / "photos"
    for name in ("a/1.jpg", "a/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "Thumbs.db", "#recycle/2.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"not opened")
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", root))
    for given in (root, archive):
        assert [Path(file.name).name for file in find_images([given])] == ["1.jpg"]
        assert count_images([given]) == 1


def test_images_on_an_object_store_have_their_addresses(bucket: str, tmp_path: Path) -> None:
    """Files, folders and archives are downloaded; their names are their addresses."""
    store = RemoteStore(parsed(f"s3://{bucket}/photos", "x"))
    for name in ("a/1.png", "a/2.png", "b.png"):
        store.write(name, name.encode())
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("3.png", b"three")
    store.upload(tmp_path / "c.zip", "c.zip")
    given = [Path(f"{store.uri}/{name}") for name in ("a", "b.png", "c.zip")]
    check_images(given)
    files = list(find_images(given))
    assert [file.name for file in files] == [
        f"{store.uri}/{name}" for name in ("a/1.png", "a/2.png", "b.png", "c.zip/3.png")
    ]
    assert count_images(given) == 4
    assert [Path(file.path).read_bytes() for file in files[:3]] == [
        b"a/1.png",
        b"a/2.png",
        b"b.png",
    ]
    with pytest.raises(DataError, match="There is nothing at"):
        check_images([Path(f"s3://{bucket}/none")])
    with pytest.raises(ConfigError, match=f"Write s3://{bucket}/a, if"):
        check_images([Path(f"s3//{bucket}/a")])


def test_tables_and_texts_beside_images_are_not_predicted(tmp_path: Path) -> None:
    """Data has its labels beside it; other files may be images, as may one that is named."""
    names = ("1.png", "labels.json", "metadata.CSV", "data.yaml", "README.md", "scan", "2.dat")
    _write(tmp_path, *names)
    assert _names(tmp_path) == [str(tmp_path / name) for name in ("1.png", "2.dat", "scan")]
    assert _names(tmp_path / "README.md") == [str(tmp_path / "README.md")]
    assert count_images([tmp_path]) == 3
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    found = _names(tmp_path / "x.zip")
    assert [each.rpartition("/")[2] for each in found] == ["1.png", "2.dat", "scan"]


@pytest.mark.parametrize("name", ["metadata.jsonl", "_classes.csv", "_annotations.coco.json"])
def test_a_folder_with_a_table_of_its_images_is_one_of_images(tmp_path: Path, name: str) -> None:
    """What a run was trained on can be predicted; a folder of Parquet parts has no files."""
    _write(tmp_path / "pets", "1.png", name)
    assert _names(tmp_path / "pets") == [str(tmp_path / "pets" / "1.png")]
    _write(tmp_path / "parts", "train-0.parquet", "train-1.parquet")
    with pytest.raises(DataError, match="parts is a table, not an image or a folder"):
        check_images([tmp_path / "parts"])

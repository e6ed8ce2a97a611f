"""Archives as data: the same images give the same data, packed in any way."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.config_files import build_config
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.ingestion import prepare, resolve
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store.prepared_store import open_images
from patchline.pipeline.errors import DataError
from patchline.pipeline.registry.version_records import image_reader
from tests.plugins.listings import ingested, two_classes


def decoded(data: Path, found: IngestedData, work: Path) -> np.ndarray:
    """Return the decoded images."""
    config = resolve(build_config(str(data), preset_name=None, file=None, flags={}), found)
    return np.array(open_images(prepare(config, found, work, fresh=True).store))


@pytest.mark.parametrize(
    ("kind", "wrapped"),
    [("zip", True), ("tar", False), ("xztar", False)],
)
def test_archive_is_the_same_data_as_its_folder(
    tmp_path: Path, kind: str, *, wrapped: bool
) -> None:
    """Fingerprint, splits and pixels are those of the folder; a folder around it all is skipped."""
    photos = two_classes(4)
    root, base = (tmp_path, "photos") if wrapped else (photos, ".")
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), kind, root, base))
    expected = ingested(photos, "one")
    found = ingested(archive, "two")
    assert (found.name, found.fingerprint) == ("packed", expected.fingerprint)
    assert (found.counts, found.notes) == (expected.counts, expected.notes)
    pixels = decoded(archive, found, tmp_path / "two")
    assert np.array_equal(pixels, decoded(photos, expected, tmp_path / "one"))
    example = np.asarray(Image.open(found.example_image))
    assert np.array_equal(example, np.asarray(Image.open(expected.example_image)))


def test_images_can_be_read_again_by_root_and_path(tmp_path: Path) -> None:
    """A gallery finds the images of an archive by what the run recorded."""
    two_classes(4)
    archive = Path(shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path, "photos"))
    found = ingested(archive, "work")
    rows = manifests.usable(manifests.load(found.manifest_file))
    read = image_reader(rows, found.root)(0)
    assert read is not None
    assert np.array_equal(read, np.asarray(Image.open(tmp_path / "photos" / rows["path"][0])))
    archive.unlink()
    assert image_reader(rows, found.root)(0) is None


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    """Members that do harm, are damaged or lie beside the folders are named with the reason."""
    file = tmp_path / "photos.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for photo in sorted(two_classes(6).rglob("*.png")):
            archive.write(photo, f"set/{photo.relative_to(tmp_path / 'photos')}")
        archive.writestr("set/across/cut.png", photo.read_bytes()[:60])
        archive.writestr("set/across/../../../out.png", photo.read_bytes())
        archive.writestr("readme.txt", "about")
    notes = "\n".join(ingested(file, "work").notes)
    assert "were left out" not in notes  # one of each cause
    assert "across/cut.png (the file ends too early)" in notes
    assert "1 member of the archive has a path outside the archive and was left out" in notes
    assert "out.png (its path leads outside the archive)" in notes
    assert "readme.txt (is not in a class folder)" in notes
    assert not list(tmp_path.parent.glob("out.png"))


def test_damaged_member_is_one_damaged_image() -> None:
    """Bytes that are flipped in one member do not concern the others."""
    file = Path(shutil.make_archive("a", "zip", two_classes(6), "."))
    data = bytearray(file.read_bytes())
    middle = data.index(b"across/003.png") + 60
    data[middle : middle + 8] = b"damaged!"
    file.write_bytes(data)
    (note,) = [each for each in ingested(file, "work").notes if "damaged" in each]
    assert note.startswith("1 member of the archive is damaged and was left out: across/003")


def test_archive_without_images_is_refused(tmp_path: Path) -> None:
    """An empty archive and one with nothing but links are refused in a sentence."""
    with tarfile.open(tmp_path / "links.tar", "w") as archive:
        info = tarfile.TarInfo("rose/1.jpg")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    with tarfile.open(tmp_path / "flat.tar", "w") as archive:
        info = tarfile.TarInfo("1.jpg")
        archive.addfile(info, io.BytesIO())
    zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
    for name, words in (
        ("empty.zip", "holds no files"),
        ("links.tar", r"rose/1\.jpg is a link; links in archives are not followed"),
        ("flat.tar", "has no class folder with files in it"),
        ("none.tgz", "There is no archive"),
    ):
        with pytest.raises(DataError, match=words):
            ingested(tmp_path / name, "work")

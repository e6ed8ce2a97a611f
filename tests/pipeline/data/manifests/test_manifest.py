"""The manifest: what it says about each file, and what its fingerprint depends on."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.data.manifests import describing
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.plugin_api import ImageListing, ListedImage
from tests.conftest import draw_photo, write_photos
from tests.pipeline.data.reading.test_decoding import png_of_zeros


def listed(root: Path, images: list[ListedImage] | None = None) -> ImageListing:
    """Return a listing of every PNG below a folder, labelled by its own folder."""
    found = [
        ListedImage(file.relative_to(root).as_posix(), file.parent.name)
        for file in root.rglob("*.png")
    ]
    return ImageListing(name="photos", root=root, images=images or found)


def row_of(root: Path, name: str, content: bytes, label: str = "rose") -> pd.Series[str]:
    """Write one file and return what the manifest says about it."""
    (root / name).write_bytes(content)
    scanned = manifests.scan(ImageListing("one", root, [ListedImage(name, label)]))
    assert len(scanned) == 1
    return scanned.iloc[0]


def test_each_file_has_one_row_that_describes_it(tmp_path: Path) -> None:
    """A row holds path, label, size, mode, bytes and the SHA-256 of the file."""
    root = write_photos(tmp_path / "photos", classes=2, images=3)
    Image.fromarray(draw_photo(0, 9)[:10, :20, 0]).save(root / "across" / "grey.png")
    scanned = manifests.scan(listed(root))
    assert list(scanned.columns) == manifests.COLUMNS
    assert list(scanned["path"]) == sorted(scanned["path"])
    assert len(scanned) == 7
    assert (scanned["status"] == "ok").all()
    assert (scanned["reason"] == "").all()
    grey = scanned.set_index("path").loc["across/grey.png"]
    content = (root / "across/grey.png").read_bytes()
    assert (grey["width"], grey["height"], grey["mode"]) == (20, 10, "L")
    assert (grey["bytes"], grey["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert (grey["label"], grey["split"], grey["group"]) == ("across", "", "")


def test_source_gives_split_and_group(tmp_path: Path) -> None:
    """What the source says about split and group is kept."""
    root = write_photos(tmp_path / "photos", classes=1, images=1)
    image = ListedImage("across/000.png", "across", split="validation", group="patient 7")
    row = manifests.scan(listed(root, [image])).iloc[0]
    assert (row["split"], row["group"]) == ("validation", "patient 7")


@pytest.mark.parametrize(
    ("name", "keep", "status", "reason"),
    [
        ("cut.png", 0.5, "damaged", "ends too early"),
        ("cut.jpg", 0.8, "damaged", "ends too early"),
        ("empty.png", 0.0, "damaged", "empty"),
    ],
)
def test_damaged_image_is_named_with_its_reason(
    tmp_path: Path, name: str, keep: float, status: str, reason: str
) -> None:
    """A part of an image is damaged, and the manifest says what is wrong with it."""
    Image.fromarray(draw_photo(0, 0, side=64)).save(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    row = row_of(tmp_path, name, whole[: int(len(whole) * keep)])
    assert row["status"] == status
    assert reason in row["reason"]


@pytest.mark.parametrize(
    ("name", "content", "status", "reason"),
    [
        ("notes.txt", b"Taken in May.\n", "foreign", "not an image"),
        ("list.csv", b"path,label\n", "foreign", "not an image"),
        ("text.jpg", b"Taken in May.\n", "damaged", "not an image that can be read"),
        ("nameless", b"\x89PNG\r\n\x1a\nand nothing else", "damaged", ""),
    ],
)
def test_foreign_file_is_told_from_a_damaged_image(
    tmp_path: Path, name: str, content: bytes, status: str, reason: str
) -> None:
    """A file that neither begins nor is named like an image is foreign, any other one damaged."""
    row = row_of(tmp_path, name, content)
    assert row["status"] == status
    assert row["reason"]
    assert reason in row["reason"]


def test_image_outside_a_class_folder_is_foreign(tmp_path: Path) -> None:
    """A good image without a label is left out as foreign."""
    Image.fromarray(draw_photo(0, 0)).save(tmp_path / "loose.png")
    row = row_of(tmp_path, "loose.png", (tmp_path / "loose.png").read_bytes(), label="")
    assert (row["status"], row["reason"]) == ("foreign", "is not in a class folder")


def test_file_that_has_gone_is_damaged(tmp_path: Path) -> None:
    """A file that was listed but cannot be opened is damaged, and the others are still read."""
    root = write_photos(tmp_path / "photos", classes=1, images=2)
    images = [ListedImage(f"across/{name}", "across") for name in ("000.png", "gone.png")]
    scanned = manifests.scan(listed(root, images))
    assert list(scanned["status"]) == ["ok", "damaged"]
    assert "cannot be read" in scanned.iloc[1]["reason"]


def test_a_disk_that_fails_damages_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with the reason of the system; the others are read."""

    def fails(_: object) -> str:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(describing, "sha256_of", fails)
    row = row_of(tmp_path, "notes.txt", b"hello")
    assert (row["status"], row["reason"]) == ("damaged", "cannot be read: Input/output error")


def test_decompression_bomb_is_damaged(tmp_path: Path) -> None:
    """A file that would unpack to too many pixels is left out like any damaged one."""
    row = row_of(tmp_path, "bomb.png", png_of_zeros(1000, 10_000_000))
    assert row["status"] == "damaged"
    assert "pixels" in row["reason"]


def test_file_name_that_is_not_utf8_can_be_scanned(tmp_path: Path) -> None:
    """A file name in another encoding than UTF-8 does not end the run."""
    name = os.fsdecode(b"caf\xe9.png")
    try:
        Image.fromarray(draw_photo(0, 0)).save(tmp_path / name, format="PNG")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    scanned = manifests.scan(ImageListing("one", tmp_path, [ListedImage(name, "rose")]))
    manifests.save(scanned, tmp_path / "manifest.parquet")
    assert len(manifests.fingerprint(scanned)) == 32


def test_progress_counts_every_file(tmp_path: Path) -> None:
    """The progress rises by one for each file, up to all of them."""
    root = write_photos(tmp_path / "photos", classes=2, images=4)
    seen: list[tuple[int, int]] = []
    manifests.scan(listed(root), lambda done, total: seen.append((done, total)))
    assert seen == [(done, 8) for done in range(1, 9)]


def test_fingerprint_does_not_depend_on_listing_order(tmp_path: Path) -> None:
    """The same files listed in another order have the same fingerprint."""
    root = write_photos(tmp_path / "photos", classes=2, images=5)
    listing = listed(root)
    backwards = ImageListing("photos", root, listing.images[::-1])
    first, second = manifests.scan(listing), manifests.scan(backwards)
    pd.testing.assert_frame_equal(first, second)
    assert manifests.fingerprint(first) == manifests.fingerprint(second)


def test_fingerprint_does_not_depend_on_place_or_time(tmp_path: Path) -> None:
    """A copy of the folder elsewhere, with other times, has the same fingerprint."""
    root = write_photos(tmp_path / "photos", classes=2, images=3)
    before = manifests.fingerprint(manifests.scan(listed(root)))
    moved = tmp_path / "far" / "away"
    shutil.copytree(root, moved)
    for file in moved.rglob("*.png"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    assert manifests.fingerprint(manifests.scan(listed(moved))) == before


def test_fingerprint_depends_on_path_label_split_group_and_content(tmp_path: Path) -> None:
    """Each change that may change a result gives another fingerprint."""
    root = write_photos(tmp_path / "photos", classes=2, images=2)
    manifest = manifests.scan(listed(root))
    fingerprints = {manifests.fingerprint(manifest)}
    for column, value in [
        ("path", "across/other.png"),
        ("label", "down"),
        ("split", "test"),
        ("group", "patient 7"),
        ("sha256", "0" * 64),
        ("status", "damaged"),
    ]:
        changed = manifest.copy()
        changed.loc[0, column] = value
        fingerprints.add(manifests.fingerprint(changed))
    fingerprints.add(manifests.fingerprint(manifest.iloc[1:]))
    assert len(fingerprints) == 8


def test_changed_pixel_changes_the_fingerprint(tmp_path: Path) -> None:
    """An image that was edited in place changes the fingerprint."""
    root = write_photos(tmp_path / "photos", classes=1, images=2)
    before = manifests.fingerprint(manifests.scan(listed(root)))
    pixels = draw_photo(0, 0)
    pixels[0, 0, 0] ^= 1
    Image.fromarray(pixels).save(root / "across/000.png")
    assert manifests.fingerprint(manifests.scan(listed(root))) != before


def test_parquet_file_gives_back_the_manifest(tmp_path: Path) -> None:
    """A manifest that is saved and loaded is the same manifest, with the same fingerprint."""
    root = write_photos(tmp_path / "photos", classes=2, images=2)
    (root / "down" / "cut.png").write_bytes(b"\x89PNG")
    manifest = manifests.scan(listed(root))
    file = tmp_path / "kept" / "manifest.parquet"
    manifests.save(manifest, file)
    loaded = manifests.load(file)
    pd.testing.assert_frame_equal(loaded, manifest)
    assert manifests.fingerprint(loaded) == manifests.fingerprint(manifest)
    assert [path.name for path in file.parent.iterdir()] == ["manifest.parquet"]


def test_usable_rows_and_classes_leave_out_what_cannot_be_read(tmp_path: Path) -> None:
    """Only images that can be read are usable, numbered from 0, and only they make classes."""
    root = write_photos(tmp_path / "photos", classes=2, images=2)
    (root / "broken").mkdir()
    (root / "broken" / "cut.png").write_bytes(b"\x89PNG")
    usable = manifests.usable(manifests.scan(listed(root)))
    assert list(usable.index) == [0, 1, 2, 3]
    assert set(usable["label"]) == {"across", "down"}
    assert manifests.classes(manifests.scan(listed(root))) == ["across", "down"]


@pytest.mark.parametrize(("count", "text"), [(1, "a"), (3, "a, b, c"), (5, "a, b, c and 2 more")])
def test_examples_name_a_few_and_count_the_rest(count: int, text: str) -> None:
    """A long list of files is cut in a message, and the rest is counted."""
    assert manifests.examples(list("abcde")[:count]) == text


def test_the_version_of_some_images_depends_on_contents_and_labels_alone() -> None:
    """Not on their order, paths or splits; another label or image is another version."""
    rows = pd.DataFrame(
        {"sha256": ["aa", "bb", "cc"], "label": ["rose", "rose", "tulip"], "path": list("abc")}
    )
    version = manifests.contents_fingerprint(rows)
    moved = rows.assign(path=list("xyz")).iloc[::-1]
    assert manifests.contents_fingerprint(moved) == version
    relabelled = rows.assign(label=["rose", "tulip", "tulip"])
    versions = {version, *map(manifests.contents_fingerprint, (relabelled, rows[:2]))}
    assert len(versions) == 3

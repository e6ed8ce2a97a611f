"""The manifest: what it says about each file, and what its fingerprint depends on."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.manifest import check_slices, own_columns
from patchline.pipeline.data.manifests.scanning import scan
from patchline.pipeline.errors import ConfigError
from patchline.plugin_api import ImageListing, ListedImage
from tests.conftest import draw_photo, encoded
from tests.plugins.listings import two_classes

_WHOLE = encoded(draw_photo(0, 0, 64), "JPEG")


def listed(root: Path, images: list[ListedImage] | None = None) -> ImageListing:
    """Return a listing of every PNG below a folder, labelled by its own folder."""
    found = [
        ListedImage(file.relative_to(root).as_posix(), file.parent.name)
        for file in root.rglob("*.png")
    ]
    return ImageListing(name="photos", root=root, images=images or found)


def test_each_file_has_one_row_that_describes_it() -> None:
    """A row holds path, label, size, mode, bytes and the SHA-256 of the file."""
    root = two_classes(3)
    Image.fromarray(draw_photo(0, 9)[:10, :20, 0]).save(root / "across/grey.png")
    scanned = scan(listed(root))
    assert list(scanned.columns) == manifests.COLUMNS
    assert (list(scanned["path"]), len(scanned)) == (sorted(scanned["path"]), 7)
    content = (root / "across/grey.png").read_bytes()
    expected = {
        "width": 20, "height": 10, "mode": "L", "bytes": len(content), "label": "across",
        "sha256": hashlib.sha256(content).hexdigest(), "split": "", "group": "", "status": "ok",
        "reason": "",
    }  # fmt: skip
    assert dict(scanned.set_index("path").loc["across/grey.png"][list(expected)]) == expected


@pytest.mark.parametrize(
    ("name", "content", "status", "reason"),
    [
        ("cut.jpg", _WHOLE[:-200], "damaged", "ends too early"),
        ("notes.txt", b"Taken in May.\n", "foreign", "not an image"),
        ("text.jpg", b"Taken in May.\n", "damaged", "not an image that can be read"),
        ("nameless", b"\x89PNG\r\n\x1a\nand nothing else", "damaged", "."),
    ],
)
def test_foreign_file_is_told_from_a_damaged_image(
    tmp_path: Path, name: str, content: bytes, status: str, reason: str
) -> None:
    """A file that neither begins nor is named like an image is foreign, any other one damaged."""
    (tmp_path / name).write_bytes(content)
    row = scan(ImageListing("one", tmp_path, [ListedImage(name, "rose")])).iloc[0]
    assert row["status"] == status
    assert re.search(reason, row["reason"])


def test_fingerprint_does_not_depend_on_order_place_or_time() -> None:
    """A copy of the folder elsewhere, with other times and listed backwards, has the same."""
    root, moved = two_classes(3), Path("far/away")
    shutil.copytree(root, moved)
    for file in moved.rglob("*.png"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    backwards = ImageListing("photos", moved, listed(moved).images[::-1])
    first, second = scan(listed(root)), scan(backwards)
    pd.testing.assert_frame_equal(first, second)
    assert manifests.fingerprint(first) == manifests.fingerprint(second)


def test_fingerprint_depends_on_path_label_split_group_and_content() -> None:
    """Each change that may change a result gives another fingerprint."""
    manifest = scan(listed(two_classes(2)))
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


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ([*manifests.COLUMNS, "column:site"], "did you mean column:site.*choose from: column:site"),
        (manifests.COLUMNS, "'column:sites', but the data has no such column; only tables"),
    ],
)
def test_an_unknown_column_to_slice_by_is_answered_with_those_that_are_there(
    there: list[str], message: str
) -> None:
    """The sentence names them, or says which data has some."""
    check_slices(["group", *own_columns(there)], there)
    with pytest.raises(ConfigError, match=message):
        check_slices(["column:sites"], there)

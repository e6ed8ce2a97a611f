"""A loaded model: any kind of image in, a table out, with the probabilities of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.prediction.loaded_model import Image as AnyImage
from patchline.pipeline.packaging.prediction.loaded_model import Model
from tests.conftest import draw_photo
from tests.pipeline.conftest import CLASSES

SAID = ["set", "coverage", "warnings"]


@pytest.fixture
def model(package: PackagedModel) -> Model:
    return Model("photos", "3", package)


def test_every_kind_of_image_gets_the_same_answer(model: Model, tmp_path: Path) -> None:
    """A path, text, bytes, an array and a Pillow image agree; a file is named, others counted."""
    pixels_HWC = draw_photo(1, 7)
    file = tmp_path / "one.png"
    Image.fromarray(pixels_HWC).save(file)
    images: list[AnyImage] = [file, str(file), file.read_bytes(), pixels_HWC, Image.open(file)]
    found = model.predict(images)
    assert list(found.index) == [str(file), str(file), 2, 3, 4]
    assert list(found.columns) == ["label", "probability", *CLASSES, *SAID]
    probabilities_NK = found[list(CLASSES)].to_numpy()
    np.testing.assert_allclose(probabilities_NK.sum(axis=1), 1, atol=1e-5)
    assert np.array_equal(probabilities_NK, np.repeat(probabilities_NK[:1], 5, axis=0))
    batch_NHWC = np.stack([pixels_HWC] * 2)
    for one in (pixels_HWC, Image.open(file), np.frombuffer(file.read_bytes(), np.uint8)):
        assert len(model.predict(one)) == 1  # needs no list
    assert len(model.predict(batch_NHWC)) == len(model.predict(iter(batch_NHWC))) == 2
    assert list(model.predict([]).columns) == list(found.columns)


def test_a_pillow_image_is_read_as_its_file_is(model: Model, tmp_path: Path) -> None:
    """Turned photographs, 16 bits, transparency and palettes look the same on both ways."""
    pixels_HWC = draw_photo(3, 2, side=48)[:32]
    grey_HW, turned = pixels_HWC[:, :, 0], Image.Exif()
    turned[0x0112] = 6  # the camera was held upright
    for name, pixels, exif in (
        ("photo.jpg", Image.fromarray(pixels_HWC), turned),
        ("sixteen.png", Image.fromarray(grey_HW.astype(np.uint16) * 257), None),
        ("clear.png", Image.fromarray(np.dstack([pixels_HWC, grey_HW])), None),
        ("palette.gif", Image.fromarray(pixels_HWC).quantize(16), None),
    ):
        pixels.save(tmp_path / name, exif=exif or Image.Exif())
        found = model.predict([tmp_path / name, Image.open(tmp_path / name)])[list(CLASSES)]
        of_file, of_pixels = found.to_numpy()
        np.testing.assert_allclose(of_file, of_pixels, atol=1e-3)


def test_a_broken_image_is_an_error_that_names_it(model: Model, tmp_path: Path) -> None:
    """Nothing is left out in silence: by default the first image that cannot be read raises."""
    file, cut = tmp_path / "broken.jpg", tmp_path / "cut.png"
    file.write_bytes(b"no image")
    Image.fromarray(draw_photo(0, 0)).save(cut)
    cut.write_bytes(cut.read_bytes()[:200])
    grey_HW = draw_photo(0, 0)[:, :, 0]
    images: list[tuple[Any, str]] = [
        ([draw_photo(0, 0), file], r"broken\.jpg could not be read: not an image"),
        ([draw_photo(0, 0), np.zeros((8, 8, 3))], "position 1 could .*: an array of float64"),
        (grey_HW, r"pass \(height, width, channels\)"),
        (Image.open(cut), "the file ends too early"),
        ("nowhere.png", "There is no file or folder"),
    ]
    for given, words in images:
        with pytest.raises(DataError, match=words):
            model.predict(given)


def test_a_broken_image_can_be_marked_instead(model: Model) -> None:
    """Its row has the reason and nothing else; the other rows are as without it."""
    good = [draw_photo(0, 0), draw_photo(1, 0)]
    found = model.predict([good[0], b"no image", good[1]], errors="mark")
    assert found["error"].isna().tolist() == [True, False, True]
    assert "not an image" in str(found.loc[1, "error"])
    assert found.loc[1, ["label", "probability", *CLASSES, *SAID[:2]]].isna().all()
    alone = model.predict(good)
    np.testing.assert_array_equal(found.loc[[0, 2], list(CLASSES)], alone[list(CLASSES)])
    with pytest.raises(ConfigError, match="'raise' or 'mark'"):
        model.predict(good, errors="ignore")  # type: ignore[arg-type]

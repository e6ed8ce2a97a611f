"""A loaded model: any kind of image in, a table out, with the probabilities of the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.prediction.loaded_model import Image as AnyImage
from patchline.pipeline.prediction.loaded_model import Model
from tests.conftest import draw_photo
from tests.pipeline.conftest import CLASSES, Exported
from tests.pipeline.prediction.predicted_photos import table_of, write_photos

SAID = ["set", "coverage", "warnings"]


@pytest.fixture(scope="module")
def package(exported_rgb: Exported) -> PackagedModel:
    return PackagedModel(exported_rgb.onnx_file, exported_rgb.description_file, threads=1)


@pytest.fixture(scope="module")
def model(package: PackagedModel) -> Model:
    return Model("photos", "3", package)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 100 images in several folders and formats; tests must not change them."""
    return write_photos(tmp_path_factory.mktemp("loaded") / "photos", 100)


def test_a_folder_gets_the_probabilities_of_the_command(
    model: Model, package: PackagedModel, photos: Path, tmp_path: Path
) -> None:
    """Names, order, labels and probabilities are those of `patchline predict --out`."""
    expected = table_of(package, photos, tmp_path / "out.parquet")
    found = model.predict(photos)
    assert list(found.index) == expected["image"].tolist()
    assert found["label"].tolist() == expected["label"].tolist()
    np.testing.assert_allclose(found["probability"], expected["probability"], atol=1e-6)
    expected_NK = np.stack(expected["probabilities"].tolist())
    np.testing.assert_allclose(found[list(model.classes)], expected_NK, atol=1e-6)


def test_every_kind_of_image_gets_the_same_answer(model: Model, tmp_path: Path) -> None:
    """A path, text, bytes, an array and a Pillow image agree; a file is named, others counted."""
    pixels_HWC = draw_photo(1, 7)
    file = tmp_path / "one.png"
    Image.fromarray(pixels_HWC).save(file)
    images: list[AnyImage] = [file, str(file), file.read_bytes(), pixels_HWC, Image.open(file)]
    found = model.predict(images)
    assert list(found.index) == [str(file), str(file), 2, 3, 4]
    probabilities_NK = found[list(CLASSES)].to_numpy()
    assert np.array_equal(probabilities_NK, np.repeat(probabilities_NK[:1], 5, axis=0))
    assert list(found.columns) == ["label", "probability", *CLASSES, *SAID]
    np.testing.assert_allclose(probabilities_NK.sum(axis=1), 1, atol=1e-5)


def test_one_image_or_a_batch_needs_no_list(model: Model) -> None:
    """A single image gets one row, and an array with four axes one for each of its images."""
    batch_NHWC = np.stack([draw_photo(0, 1), draw_photo(2, 1)])
    assert len(model.predict(batch_NHWC[0])) == 1
    assert len(model.predict(Image.fromarray(batch_NHWC[0]))) == 1
    assert len(model.predict(batch_NHWC)) == 2
    assert len(model.predict(iter(batch_NHWC))) == 2
    assert list(model.predict([]).columns) == ["label", "probability", *CLASSES, *SAID]


@pytest.mark.parametrize("name", ["photo.jpg", "sixteen.png", "clear.png", "palette.gif"])
def test_a_pillow_image_is_read_as_its_file_is(model: Model, tmp_path: Path, name: str) -> None:
    """Turned photographs, 16 bits, transparency and palettes look the same on both ways."""
    pixels_HWC = draw_photo(3, 2, side=48)[:32]
    exif = Image.Exif()
    if name == "photo.jpg":
        exif[0x0112] = 6  # the camera was held upright
        image = Image.fromarray(pixels_HWC)
    elif name == "sixteen.png":
        image = Image.fromarray(pixels_HWC[:, :, 0].astype(np.uint16) * 257)
    elif name == "clear.png":
        image = Image.fromarray(np.dstack([pixels_HWC, pixels_HWC[:, :, 0]]))
    else:
        image = Image.fromarray(pixels_HWC).quantize(16)
    image.save(tmp_path / name, exif=exif)
    found = model.predict([tmp_path / name, Image.open(tmp_path / name)])
    probabilities_NK = found[list(CLASSES)].to_numpy()
    np.testing.assert_allclose(probabilities_NK[0], probabilities_NK[1], atol=1e-3)


def test_a_broken_image_is_an_error_that_names_it(model: Model, tmp_path: Path) -> None:
    """Nothing is left out in silence: by default the first image that cannot be read raises."""
    file = tmp_path / "broken.jpg"
    file.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"broken\.jpg could not be read: not an image"):
        model.predict([draw_photo(0, 0), file])
    with pytest.raises(DataError, match="position 1 could not be read: an array of float64"):
        model.predict([draw_photo(0, 0), np.zeros((8, 8, 3))])
    cut = tmp_path / "cut.png"
    Image.fromarray(draw_photo(0, 0)).save(cut)
    cut.write_bytes(cut.read_bytes()[:200])
    with pytest.raises(DataError, match="the file ends too early"):
        model.predict(Image.open(cut))
    with pytest.raises(DataError, match="There is no file or folder"):
        model.predict("nowhere.png")


def test_a_broken_image_can_be_marked_instead(model: Model, tmp_path: Path) -> None:
    """Its row has the reason and nothing else; the other rows are as without it."""
    file = tmp_path / "broken.jpg"
    file.write_bytes(b"no image")
    found = model.predict([draw_photo(0, 0), file, draw_photo(1, 0)], errors="mark")
    assert found["error"].isna().tolist() == [True, False, True]
    assert "not an image" in str(found.loc[str(file), "error"])
    assert found.loc[str(file), ["label", "probability", *CLASSES, *SAID[:2]]].isna().all()
    alone = model.predict([draw_photo(0, 0), draw_photo(1, 0)])
    np.testing.assert_array_equal(found.loc[[0, 2], list(CLASSES)], alone[list(CLASSES)])
    with pytest.raises(ConfigError, match="'raise' or 'mark'"):
        model.predict(file, errors="ignore")  # type: ignore[arg-type]


def test_a_class_may_be_called_like_a_column(package: PackagedModel) -> None:
    """Its probabilities get a name of their own."""
    renamed = package.with_threads(1)
    renamed.classes = ["label", *CLASSES[1:]]
    found = Model("photos", "3", renamed).predict(draw_photo(0, 0))
    assert list(found.columns) == ["label", "probability", "class label", *CLASSES[1:], *SAID]

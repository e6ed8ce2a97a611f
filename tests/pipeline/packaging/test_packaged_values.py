"""A package maps pixel values as its training did, in the package's own code too."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.config_files import validate_config
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store import prepared_store
from patchline.pipeline.packaging.clean_process_check import _photographs
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.prediction.loaded_model import Model
from patchline.pipeline.packaging.standalone_file import write_model_server
from tests.conftest import encoded
from tests.pipeline.conftest import Exported
from tests.pipeline.data.pixel_values.made_files import png_file, tiff_file, write_files

Values = np.ndarray[Any, Any]


def package_of(exported: Exported, folder: Path, values: dict[str, Any]) -> PackagedModel:
    """Return a package whose description states what becomes of pixel values."""
    description = json.loads(exported.description_file.read_text("utf-8"))
    description["image"]["pixel_values"] = values
    file = folder / "model.json"
    file.write_text(json.dumps(description), "utf-8")
    return PackagedModel(exported.onnx_file, file, threads=1)


def twelve_bits(texture: Values) -> bytes:
    return png_file((texture * 4095).astype(np.uint16)[:, :, None])


def five_bands(texture: Values) -> bytes:
    bands = [texture * high for high in (30, 60, 120, 180, 240)]
    return tiff_file(np.dstack(bands).astype(np.uint8), 2, [0, 0], deflate=True, predictor=2)


@pytest.mark.parametrize(
    ("name", "file_of", "settings"),
    [
        ("{:02}.png", twelve_bits, {}),
        ("{:02}.png", twelve_bits, {"value_range": (500, 3000)}),
        ("{:02}.tif", five_bands, {"bands": [4, 3, 2]}),
    ],
)
def test_a_package_sees_the_pixels_of_its_training(
    exported_rgb: Exported, tmp_path: Path, name: str, file_of: Any, settings: dict[str, Any]
) -> None:
    """The package's pixels of a file are those of the prepared store, bit for bit."""
    root = write_files(tmp_path / "data", name, file_of)
    side = json.loads(exported_rgb.description_file.read_text("utf-8"))["image"]
    given = {"path": str(root), "image_size": side["height"], "channels": 3, **settings}
    config = validate_config({"data": given})
    data = ingestion.ingest(config, tmp_path / "work")
    prepared = ingestion.prepare(ingestion.resolve(config, data), data, tmp_path / "work")
    package = package_of(
        exported_rgb, tmp_path, prepared.image.model_dump(mode="json")["pixel_values"]
    )
    assert package.image["resize"] == prepared.image.resize
    rows = manifests.usable(manifests.load(data.manifest_file))
    stored = prepared_store.open_images(prepared.store)[:]
    for path, image_HWC in zip(rows["path"], stored, strict=True):
        assert np.array_equal(package.pixels((root / path).read_bytes()), image_HWC)
    assert len(np.unique(stored)) > 100


def test_values_outside_of_the_range_are_said(exported_rgb: Exported, tmp_path: Path) -> None:
    """An image far outside of the training's range is predicted, with a warning that says it."""
    ranges = {"ranges": [{"kind": "uint16", "low": 0, "high": 4095}]}
    package = package_of(exported_rgb, tmp_path, ranges)
    bright = np.linspace(0, 65535, 24 * 24).astype(np.uint16).reshape(24, 24, 1)
    with pytest.warns(
        UserWarning, match=r"1 of 2 images has 16-bit values outside of the range 0 to 4,095"
    ):
        Model("deep", "1", package).predict([png_file(bright), png_file(bright >> 4)])
    assert package.fits.words() == ""
    answer = package.answers([tiff_file(bright.astype(np.float32))])[0]
    assert "floating-point values, and nothing says which are black and white" in answer["error"]


def test_eight_bits_for_a_model_of_sixteen_are_said(exported_rgb: Exported, tmp_path: Path) -> None:
    """Once for all images, with their number; a model that was trained on both says nothing."""
    values = np.arange(24 * 24, dtype=np.uint16).reshape(24, 24) * 7
    small = (values >> 4).astype(np.uint8)
    given: list[Any] = [encoded(small), values, small, Image.fromarray(small)]
    ranges = {"ranges": [{"kind": "uint16", "low": 0, "high": 4095}]}
    package = package_of(exported_rgb, tmp_path, {**ranges, "eight_bit": False})
    said = "3 of 4 images have 8-bit values, and the model was trained on images of 16-bit values"
    with pytest.warns(UserWarning, match=said):
        Model("deep", "1", package).predict(given)
    assert package.fits.words() == ""
    both = package_of(exported_rgb, tmp_path, ranges)
    Model("deep", "1", both).predict(given)
    plain = PackagedModel(exported_rgb.onnx_file, exported_rgb.description_file, threads=1)
    plain.pixels(png_file(values[:, :, None] * 10))
    assert plain.fits.words().startswith("1 image has 16-bit values, and the model was trained on")


@pytest.mark.parametrize("bands", [(4, 3, 2), (7,)])
def test_a_package_is_checked_with_images_of_as_many_bands(
    exported_rgb: Exported, tmp_path: Path, bands: tuple[int, ...]
) -> None:
    """The images that check a package in a clean process have the bands that it reads."""
    package = package_of(exported_rgb, tmp_path, {"bands": list(bands)})
    for answer in package.answers(list(_photographs(tmp_path, max(bands)))):
        assert answer["error"] is None


def test_the_modules_of_a_package_do_not_share_names(tmp_path: Path) -> None:
    """They are written into one file, where the second of two functions would win."""
    write_model_server(tmp_path / "model_server.py")
    named: dict[str, str] = {}
    for node in ast.parse((tmp_path / "model_server.py").read_text("utf-8")).body:
        names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        if isinstance(node, ast.Assign):
            targets = [each for target in node.targets for each in ast.walk(target)]
            names = [each.id for each in targets if isinstance(each, ast.Name)]
        for name in names:
            assert named.setdefault(name, ast.dump(node)) == ast.dump(node), name

"""Data sets of scikit-learn and torchvision: their own images, labels and splits, copied once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from torchvision import datasets

from patchline.pipeline.config_files import build_config
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.data.reading.decoding import decode_image
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.errors import DataError
from patchline.plugin_api import ImageListing, SourceContext
from patchline.plugins.data_sources import digits
from patchline.plugins.data_sources import torchvision as source


def listed(path: str, work: Path, **settings: Any) -> Any:
    """Return what the source lists for the name behind `torchvision:`."""
    config = source.TorchvisionDataConfig(**settings)
    return source.plugin.build(config, SourceContext(path, work)).list_images()


@pytest.fixture
def mnist(tmp_path: Path) -> str:
    """Return the name of a small data set in MNIST's own files."""
    assert source.plugin.example is not None
    return source.plugin.example(tmp_path)


def test_images_labels_and_splits_are_those_of_torchvision(mnist: str) -> None:
    """Every image comes back bit for bit, with its class and its split."""
    listing = listed(mnist, Path("work"))
    root = Path(mnist).parent
    for split, train in (("train", True), ("test", False)):
        expected = datasets.MNIST(str(root), train=train)
        images = [image for image in listing.images if image.split == split]
        assert len(images) == len(expected)
        by_number = {int(Path(image.path).stem): image for image in images}
        for number in range(len(expected)):
            pixels, label = expected[number]
            assert by_number[number].label == expected.classes[label]
            with root_image_bytes(listing.root, by_number[number].path) as data:
                assert np.array_equal(decode_image(data, 1)[:, :, 0], np.asarray(pixels))
    assert not listing.mirror_symmetric


def test_one_argument_is_enough(mnist: str) -> None:
    """`torchvision:FOLDER/MNIST` is read like any data; a second time nothing is copied."""
    config = build_config(f"torchvision:{mnist}", preset_name=None, file=None, flags={})
    assert config.data.source == "torchvision"
    found = ingest(config, Path("work"))
    assert (found.name, found.greyscale) == ("mnist", True)
    [archive] = Path("work").rglob("MNIST-*.zip")
    made = archive.stat().st_mtime_ns
    assert ingest(config, Path("work")).fingerprint == found.fingerprint
    assert archive.stat().st_mtime_ns == made


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """Unknown names, missing files and a missing network are sentences with a remedy."""
    with pytest.raises(DataError, match="Did you mean torchvision:CIFAR10"):
        listed("cifar-10", tmp_path)
    with pytest.raises(DataError, match=r"no complete files in .*--data\.download"):
        listed(str(tmp_path / "CIFAR10"), tmp_path)


def test_every_name_is_a_class_that_takes_the_splits(tmp_path: Path) -> None:
    """Each data set is opened with arguments that torchvision knows: only its files are missing."""
    for name in source.NAMES:
        assert hasattr(datasets, name)
        with pytest.raises(DataError, match=r"no complete files|needs the package") as raised:
            listed(str(tmp_path / name), tmp_path)
        assert not isinstance(raised.value.__cause__, TypeError | ValueError), name


def _digits(work_dir: Path) -> ImageListing:
    context = SourceContext(path=None, work_dir=work_dir)
    return digits.plugin.build(digits.DigitsConfig(), context).list_images()


def test_digits_are_those_of_scikit_learn_and_written_once(tmp_path: Path) -> None:
    """All are there, with values scaled from 16 to 255; a second listing writes what is missing."""
    listing, data = _digits(tmp_path), load_digits()
    assert len(listing.images) == 1797
    assert [int(image.label) for image in listing.images] == data.target.tolist()
    assert not listing.mirror_symmetric
    for image, values in list(zip(listing.images, data.images, strict=True))[::40]:
        pixels = np.asarray(Image.open(listing.root / image.path))
        assert np.array_equal(pixels, np.round(values * 255 / 16))
    written = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.*")}
    missing = listing.root / listing.images[100].path
    missing.unlink()
    assert _digits(tmp_path).images == listing.images
    assert [file for file, time in written.items() if file.stat().st_mtime_ns != time] == [missing]

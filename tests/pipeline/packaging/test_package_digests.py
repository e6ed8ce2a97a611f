"""A package is opened only as it was packaged; one without digests is not known to be."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from patchline.pipeline.packaging.package_digests import (
    DIGESTS_FILE,
    ChangedPackageError,
    write_digests,
)
from patchline.pipeline.packaging.package_files import DIGESTED
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.serving.checked_package import PackageRefusedError, check_package
from tests.pipeline.registry.made_versions import made_package


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return the folder of a package with digests."""
    folder = tmp_path / "artifacts"
    made_package(folder)
    (folder / "reference_features.npz").write_bytes(b"never read without rules")
    write_digests(folder, DIGESTED)
    return folder


def opened(folder: Path) -> PackagedModel:
    """Open a package."""
    return PackagedModel(folder / "model.onnx", folder / "model.json")


@pytest.mark.parametrize(
    "name", ["model.onnx", "model.json", "model.safetensors", "reference_features.npz"]
)
def test_a_changed_byte_is_refused(package: Path, name: str) -> None:
    """In any file; the sentence names the file, and no path."""
    file = package / name
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ChangedPackageError, match=f"its file {name} was changed"):
        opened(package)
    with pytest.raises(PackageRefusedError, match=f"its file {name} was changed") as refused:
        check_package(package.parent, threads=1)
    assert str(package.parent) not in str(refused.value)


def test_a_missing_file_is_refused_if_answers_depend_on_it(package: Path) -> None:
    """Without its reference, a package would silently warn less; weights are for training."""
    (package / "model.safetensors").unlink()
    assert opened(package).is_verified
    (package / "reference_features.npz").unlink()
    with pytest.raises(ChangedPackageError, match=r"lacks the file reference_features\.npz"):
        opened(package)


@pytest.mark.parametrize("text", ["{", "[]", '{"sha256": 3}', "[" * 100_000])
def test_damaged_digests_are_refused(package: Path, text: str) -> None:
    """Whatever stands in their file."""
    (package / DIGESTS_FILE).write_text(text)
    with pytest.raises(ChangedPackageError, match=r"digests\.json is damaged"):
        opened(package)


def test_a_package_of_before_is_accepted_and_said_to_be_unknown(
    package: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without digests, nobody can tell."""
    assert check_package(package.parent, threads=1).package.is_verified
    (package / DIGESTS_FILE).unlink()
    with caplog.at_level(logging.WARNING):
        assert not check_package(package.parent, threads=1).package.is_verified
    assert "whether its files were changed is not known" in caplog.text

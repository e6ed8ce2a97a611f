"""Tests of `patchline.pipeline.models.reference_images`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.models.reference_images import (
    REFERENCE_IMAGES_FILE,
    ReferenceImages,
    as_kept,
    load_reference_images,
    save_reference_images,
)
from tests.conftest import Run


def test_they_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Numbers are rounded to 16 bits, and words may hold any character."""
    generator, file = np.random.default_rng(0), tmp_path / REFERENCE_IMAGES_FILE
    reference = ReferenceImages(
        probabilities_MK=generator.random((3, 2)),
        features_MD=np.array([[1e9, -1e9], [0.5, 0.25], [0, 1]]),
        labels=np.array([0, 1, 1]),
        is_test_M=np.array([True, False, True]),
        sha256=("a" * 64, "b" * 64, "c" * 64),
        paths=("ä/1.png", "日本/2.png", 'b"/3.png'),
        why_no_features="",
        units_M=np.array([4, 4, 1]),
        are_alike=True,
    )
    save_reference_images(reference, file)
    loaded = load_reference_images(file)
    assert loaded is not None
    assert loaded.paths == reference.paths
    assert loaded.sha256 == reference.sha256
    np.testing.assert_array_equal(loaded.probabilities_MK, as_kept(reference.probabilities_MK))
    np.testing.assert_array_equal(loaded.features_MD[0], [65504, -65504])
    np.testing.assert_array_equal(loaded.labels, [0, 1, 1])
    np.testing.assert_array_equal(loaded.is_test_M, [True, False, True])
    assert loaded.has_features
    assert loaded.units_M is not None
    assert (loaded.units_M.tolist(), loaded.are_alike) == ([4, 4, 1], True)
    one = loaded.of(np.array([1]))
    assert (one.sha256, one.labels.tolist(), len(one)) == (("b" * 64,), [1], 1)


def test_no_file_and_a_damaged_file_are_two_things(tmp_path: Path) -> None:
    """A package of before has none; one that cannot be read is never taken for one."""
    file = tmp_path / REFERENCE_IMAGES_FILE
    assert load_reference_images(file) is None
    for content in (b"", b"PK\x03\x04 no archive", b"text"):
        file.write_bytes(content)
        with pytest.raises(ModelReferenceError, match="is damaged"):
            load_reference_images(file)


def test_a_registered_version_has_its_validation_and_test_images(finished_run: Run) -> None:
    """Each with probabilities, features and its label, as the package itself computes them."""
    [file] = finished_run.folder.rglob(f"artifacts/artifacts/{REFERENCE_IMAGES_FILE}")
    reference = load_reference_images(file)
    assert reference is not None
    assert 0 < reference.is_test_M.sum() < len(reference)
    assert reference.probabilities_MK.shape == (len(reference), 3)
    np.testing.assert_allclose(reference.probabilities_MK.sum(axis=1), 1, atol=2e-3)
    assert reference.features_MD.shape[0] == len(reference)
    assert reference.has_features
    assert reference.units_M is not None
    assert 1 < len(set(reference.units_M.tolist())) < len(reference)  # stripes in phase
    names = ("across", "down", "rising")
    assert all(
        path.startswith(names[label])
        for path, label in zip(reference.paths, reference.labels, strict=True)
    )

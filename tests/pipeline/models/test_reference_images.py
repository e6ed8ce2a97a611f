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
    np.testing.assert_array_equal(loaded.probabilities_MK, as_kept(reference.probabilities_MK))
    np.testing.assert_array_equal(loaded.features_MD[0], [65504, -65504])
    for name in ("paths", "sha256", "labels", "is_test_M", "units_M", "are_alike"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(reference, name))
    assert loaded.has_features
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

"""Tests of `patchline.pipeline.monitoring.drift_tests`."""

from __future__ import annotations

import numpy as np
import pytest

from patchline.pipeline.models.reference_images import ReferenceImages
from patchline.pipeline.monitoring.drift_tests import FEATURES, OUTPUTS, drift_tests, fewest_images


def reference_of(images: int, features: int) -> ReferenceImages:
    """Return a reference of two classes."""
    generator = np.random.default_rng(images)
    first = generator.uniform(0.2, 0.8, images)
    names = tuple(map(str, range(images)))
    return ReferenceImages(
        probabilities_MK=np.stack([first, 1 - first], axis=1),
        features_MD=generator.normal(size=(images, features)),
        labels=np.zeros(images, int),
        is_test_M=np.ones(images, bool),
        sha256=names,
        paths=names,
        why_no_features="" if features else "none",
    )


@pytest.mark.parametrize(("images", "features"), [(2000, 3), (2000, 0), (12, 3), (12, 0), (4, 0)])
def test_fewer_images_than_the_fewest_show_no_drift_however_gross(
    images: int, features: int
) -> None:
    """With so many, images beyond all of the reference are found."""
    reference, level = reference_of(images, features), 0.025 / 365
    fewest = fewest_images(reference, level, has_features=bool(features))

    def found(count: int) -> bool:
        outputs = np.tile([[1.0, 0.0]], (count, 1))
        far = np.full((count, features), 50.0) if features else None
        tests = drift_tests(reference, outputs, far, level, seed=0, classes=("a", "b"))
        return tests.drift

    assert found(fewest)
    assert not found(fewest - 1)


def test_an_effect_size_names_its_unit_and_its_class() -> None:
    """The largest distance of the outputs is that of one class, from 0 to 1."""
    reference = reference_of(200, 3)
    outputs = np.tile([[1.0, 0.0]], (30, 1))
    tests = drift_tests(reference, outputs, np.ones((30, 3)), 0.05, seed=0, classes=("a", "b"))
    assert tests.tests[OUTPUTS].effect == pytest.approx(1)
    assert tests.tests[OUTPUTS].effect_unit.endswith("of a")
    assert "standard deviations" in tests.tests[FEATURES].effect_unit

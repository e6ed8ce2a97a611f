"""Tests of `patchline.pipeline.monitoring.drift_tests`."""

from __future__ import annotations

import numpy as np
import pytest

from patchline.pipeline.models.reference_images import ReferenceImages
from patchline.pipeline.monitoring.drift_tests import FEATURES, OUTPUTS, drift_tests, fewest_images
from tests.pipeline.monitoring.reference import reference_of


def _reference(images: int, features: int) -> ReferenceImages:
    generator = np.random.default_rng(images)
    first = generator.uniform(0.2, 0.8, images)
    return reference_of(
        np.stack([first, 1 - first], axis=1), generator.normal(size=(images, features))
    )


@pytest.mark.parametrize(("images", "features"), [(2000, 3), (12, 3), (12, 0), (4, 0)])
def test_fewer_images_than_the_fewest_show_no_drift_however_gross(
    images: int, features: int
) -> None:
    """With so many, images beyond all of the reference are found."""
    reference, level = _reference(images, features), 0.025 / 365
    fewest = fewest_images(reference, level, has_features=bool(features))
    for count in (fewest, fewest - 1):
        outputs = np.tile([[1.0, 0.0]], (count, 1))
        far = np.full((count, features), 50.0) if features else None
        found = drift_tests(reference, outputs, far, level, seed=0, classes=("a", "b"))
        assert found.drift == (count == fewest)


def test_an_effect_size_names_its_unit_and_its_class() -> None:
    """The largest distance of the outputs is that of one class, from 0 to 1."""
    reference = _reference(200, 3)
    outputs = np.tile([[1.0, 0.0]], (30, 1))
    tests = drift_tests(reference, outputs, np.ones((30, 3)), 0.05, seed=0, classes=("a", "b"))
    assert tests.tests[OUTPUTS].effect == pytest.approx(1)
    assert tests.tests[OUTPUTS].effect_unit.endswith("of a")
    assert "standard deviations" in tests.tests[FEATURES].effect_unit

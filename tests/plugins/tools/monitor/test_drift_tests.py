"""Tests of `patchline.plugins.tools.monitor.drift_tests`."""

from __future__ import annotations

import numpy as np
import pytest

from patchline.plugins.tools.monitor.drift_tests import drift_tests, fewest_images
from tests.plugins.tools.monitor.reference import reference_of


@pytest.mark.parametrize(("images", "features"), [(2000, 3), (12, 3), (12, 0), (4, 0)])
def test_fewer_images_than_the_fewest_show_no_drift_however_gross(
    images: int, features: int
) -> None:
    """With so many, images beyond all of the reference are found."""
    generator, level = np.random.default_rng(images), 0.025 / 365
    first = generator.uniform(0.2, 0.8, images)
    probabilities = np.stack([first, 1 - first], axis=1)
    reference = reference_of(probabilities, generator.normal(size=(images, features)))
    fewest = fewest_images(reference, level, has_features=bool(features))
    for count in (fewest, fewest - 1):
        outputs = np.tile([[1.0, 0.0]], (count, 1))
        far = np.full((count, features), 50.0) if features else None
        found = drift_tests(reference, outputs, far, level, seed=0, classes=("a", "b"))
        assert found.drift == (count == fewest)

"""What counts as agreement, and what is said where it is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from patchline.pipeline.workers.host.processors import this_processor
from patchline.plugins.tools.export.comparison import EXACT, REDUCED, compare_forms


def test_the_same_labels_are_not_enough() -> None:
    """A float32 form whose probabilities are off is refused, and so is one with a single NaN."""
    rows = np.random.default_rng(0).dirichlet(np.ones(5) * 0.2, 100)
    package = rows.astype(np.float32)
    form = (package * 0.999 + 0.001 / 5).astype(np.float32)
    found = compare_forms(package, form, package.argmax(1), EXACT)
    assert (found.labels.value, found.passed) == (1.0, False)
    form[17, 2] = np.nan
    found = compare_forms(package, form, package.argmax(1), REDUCED)
    assert found.failures == ("a probability is not a number",)
    assert found.largest_difference is None


def test_the_processor_is_read_from_what_the_system_says(tmp_path: Path) -> None:
    """With VNNI or without; on ARM; and where nothing is known."""
    file = tmp_path / "cpuinfo"
    file.write_text("processor : 0\nmodel name : Fast 9000\nflags : fpu avx2 avx512_vnni\n")
    assert this_processor(file) == ("Fast 9000", ("avx2", "avx512_vnni"))
    assert this_processor(file).has_int8_products
    file.write_text("processor : 0\nmodel name : Old\nflags : fpu avx2\n")
    assert not this_processor(file).has_int8_products
    file.write_text("processor : 0\nFeatures : fp asimd asimddp\n")
    assert this_processor(file).has_int8_products
    assert not this_processor(tmp_path / "absent").has_int8_products


def test_of_several_labels_all_must_be_the_same() -> None:
    """An image agrees if each label is on the same side of its threshold in both."""
    thresholds = np.array([0.5, 0.2, 0.8])
    package = np.tile(np.array([[0.6, 0.3, 0.7]], np.float32), (400, 1))
    form = package.copy()
    form[0] = [0.6, 0.19, 0.7]  # the most probable label is the same
    form[1] = [0.55, 0.35, 0.6]
    labels = np.tile([1, 1, 0], (400, 1))
    labels[:4] = [1, 0, 0]
    found = compare_forms(package, form, labels, REDUCED, thresholds)
    assert found.labels.value == 399 / 400
    assert found.package_accuracy.value == 396 / 400
    assert found.form_accuracy.value == 397 / 400
    assert found.passed
    assert found.accuracies == "exact match 99.2%, package 99.0%"
    form[:3] = form[0]
    [failure] = compare_forms(package, form, labels, REDUCED, thresholds).failures
    assert "99.2% of 400 images the labels of the package" in failure

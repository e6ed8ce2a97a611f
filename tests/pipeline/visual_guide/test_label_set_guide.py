"""The guide of a multi-label model: sigmoids, thresholds, and the label that is explained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from patchline.pipeline.metrics.label_calibration import LabelCalibration
from patchline.pipeline.metrics.label_thresholds import LabelThresholds
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.visual_guide.attributions import attribute
from patchline.pipeline.visual_guide.covering_test import covering_test
from patchline.pipeline.visual_guide.explaining import ImageToExplain, explain, subject_of
from patchline.pipeline.visual_guide.traced_image import Pixels
from tests.conftest import draw_photo
from tests.pipeline.visual_guide.made_guides import CLASSES, SIDE, make_model
from tests.pipeline.visual_guide.test_attributions import Corner

FITS = LabelCalibration(
    scales=(0.5, 0.8, 1.0, 1.0), shifts=(0.3, -0.2, 0.0, 0.0), determined=(True, True, True, False)
)
VIT = {"name": "vit", "depth": 2}


def _sets(
    thresholds: tuple[float, ...] = (0.4, 0.5, 0.6, 0.5),
) -> tuple[nn.Module, ModelDescription]:
    model, description = make_model(VIT)
    values = LabelThresholds(values=thresholds, fitted=(True, True, True, False))
    sets = {"task": "multi_label", "label_calibration": FITS, "thresholds": values}
    return model, description.model_copy(update={**sets, "temperature": 1.0})


def _pixels() -> Pixels:
    return np.random.default_rng(3).integers(0, 256, (SIDE, SIDE, 3), np.uint8)


def test_every_probability_is_a_sigmoid_of_its_own() -> None:
    """Those after each block too; the labels at or above their thresholds are given."""
    model, description = _sets()
    image = ImageToExplain("a", _pixels(), _pixels(), None)
    subject = subject_of(model, description, image, occlusion=False)
    traced = subject.traced
    expected = FITS.probabilities(traced.logits_K[None])[0]
    np.testing.assert_allclose(traced.probabilities_K, expected, atol=1e-6)
    readouts = subject.inside.readouts_LK
    assert readouts is not None
    np.testing.assert_allclose(readouts[-1], expected, atol=1e-5)
    given = {k for k in range(4) if expected[k] >= (0.4, 0.5, 0.6, 0.5)[k]}
    assert set(subject.labels) == given
    assert subject.attributions.label == int(expected.argmax())


def test_a_cell_changes_the_probability_of_the_explained_label_alone() -> None:
    """The loss is that of the label's own sigmoid, whatever the other labels are."""
    fits = LabelCalibration(scales=(1.0, 2.0), shifts=(0.0, 0.5), determined=(True, True))
    found = attribute(Corner(), torch.ones(3, 8, 8), 1, (2, 2), calibration=fits)
    assert found.probabilities_hw is not None
    before, after = 1 / (1 + np.exp(-2.5)), 1 / (1 + np.exp(-0.5))
    expected = [[after, before], [before, before]]
    np.testing.assert_allclose(found.probabilities_hw, expected, rtol=1e-5)
    np.testing.assert_allclose(found.gradient_hw, [[2 * (1 - before), 0], [0, 0]], atol=1e-6)


@pytest.mark.parametrize("label", [None, "tulip"])
def test_the_page_explains_a_chosen_label(tmp_path: Path, label: str | None) -> None:
    """By default the most probable one; the page tells of sigmoids and thresholds, not softmax."""
    model, description = _sets()
    save_model(tmp_path / "model", model, description)
    (tmp_path / "rose").mkdir()
    Image.fromarray(draw_photo(1, 1, SIDE)).save(tmp_path / "rose" / "photo.png")
    page = tmp_path / "page.html"
    [answer] = explain(
        tmp_path / "model", [(tmp_path / "rose" / "photo.png", label)], page, "flowers/3"
    )
    html = page.read_text(encoding="utf-8")
    assert answer.labels is not None
    assert answer.true_label is None
    assert answer.label == (answer.labels[0]["label"] if answer.labels else None)
    assert answer.explained == (label or answer.explained)
    assert answer.explained in CLASSES
    assert "A sigmoid turns each logit into a probability of its own" in html
    assert "probabilities that sum to 1" not in html
    assert f"The model gives this image {len(answer.labels) or 'no'} label" in html


def test_an_image_without_labels_is_said(tmp_path: Path) -> None:
    """Nothing is at its threshold: the page says so, and explains the most probable label."""
    model, description = _sets((1.0,) * 4)
    save_model(tmp_path / "model", model, description)
    Image.fromarray(draw_photo(1, 1, SIDE)).save(tmp_path / "photo.png")
    page = tmp_path / "page.html"
    [answer] = explain(
        tmp_path / "model", [(tmp_path / "photo.png", None)], page, "f/3", occlusion=False
    )
    assert (answer.label, answer.probability, answer.labels) == (None, None, ())
    assert answer.explained
    assert "every probability is below its threshold" in page.read_text(encoding="utf-8")


def test_covering_is_tested_on_the_most_probable_label() -> None:
    """The probabilities of the test are calibrated sigmoids."""
    model, description = _sets()
    images = [_pixels(), _pixels()[::-1].copy()]
    result = covering_test(model, description, images, seed=0)
    assert result is not None
    image = ImageToExplain("a", images[0], images[0], None)
    traced = [
        subject_of(model, description, image._replace(pixels=pixels), occlusion=False).traced
        for pixels in images
    ]
    before = np.mean([float(each.probabilities_K.max()) for each in traced])
    assert result.before == pytest.approx(before, abs=1e-5)

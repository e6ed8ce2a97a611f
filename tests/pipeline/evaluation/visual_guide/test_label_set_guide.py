"""The guide of a multi-label model: sigmoids, thresholds, and the label that is explained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

from patchline.pipeline.evaluation.metrics.label_calibration import (
    LabelCalibration,
    LabelThresholds,
)
from patchline.pipeline.evaluation.visual_guide.attention_maps import covering_test
from patchline.pipeline.evaluation.visual_guide.explaining import (
    ImageToExplain,
    explain,
    subject_of,
)
from patchline.pipeline.evaluation.visual_guide.traced_image import Pixels
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.model_files import save_model
from tests.conftest import draw_photo
from tests.pipeline.evaluation.visual_guide.made_guides import CLASSES, SIDE, make_model

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
    covered = covering_test(model, description, [_pixels()] * 2, seed=0)
    assert covered is not None
    assert covered.before == pytest.approx(float(expected.max()), abs=1e-5)


@pytest.mark.parametrize(("label", "thresholds"), [("tulip", (0.4,) * 4), (None, (1.0,) * 4)])
def test_the_page_explains_a_chosen_label(
    tmp_path: Path, label: str | None, thresholds: tuple[float, ...]
) -> None:
    """By default the most probable one; the page tells of sigmoids and thresholds, not softmax."""
    model, description = _sets(thresholds)
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
    assert ("below its threshold" in html) is (label is None)

"""The package of a multi-label model: sigmoids in the graph, thresholds, and sets of labels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from patchline.pipeline.models.inference import normalised
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.packaging.model_card import CardFacts, CardLabel, model_card
from patchline.pipeline.packaging.packaged_model import PackagedModel
from tests.pipeline.conftest import (
    CLASSES,
    LABEL_CALIBRATION,
    LABEL_THRESHOLDS,
    Exported,
    image_spec,
    random_pixels,
    vit_choice,
)
from tests.pipeline.ruled_package import photograph


@pytest.fixture(scope="module")
def sets(exported_sets: Exported) -> PackagedModel:
    return PackagedModel(exported_sets.onnx_file, exported_sets.description_file, threads=1)


def test_the_network_computes_a_calibrated_sigmoid_for_each_label(
    sets: PackagedModel, exported_sets: Exported
) -> None:
    """A probability is the sigmoid of the scaled and shifted logit, for batches of any size."""
    pixels = random_pixels(7)
    model = exported_sets.model
    with torch.inference_mode():
        logits = model.model(normalised(torch.from_numpy(pixels), model.image)).numpy()
    expected = LABEL_CALIBRATION.probabilities(logits)
    for count in (1, 2, 7):
        found = sets.probabilities(pixels[:count])
        np.testing.assert_allclose(found, expected[:count], atol=1e-5)
    assert not np.allclose(expected.sum(axis=1), 1, atol=0.1)


def test_labels_are_those_at_or_above_their_thresholds(sets: PackagedModel) -> None:
    """An answer names the chosen labels, the most probable first, and ranks all with thresholds."""
    thresholds = dict(zip(CLASSES, LABEL_THRESHOLDS.values, strict=True))
    sizes = set()
    for answer in sets.answers([photograph(seed) for seed in range(12)], top_k=len(CLASSES)):
        ranked = answer["top_k"]
        assert {each["label"]: each["threshold"] for each in ranked} == thresholds
        shares = [each["probability"] for each in ranked]
        assert shares == sorted(shares, reverse=True)
        chosen = [each for each in ranked if each["probability"] >= each["threshold"]]
        assert [each["label"] for each in answer["labels"]] == [each["label"] for each in chosen]
        first = chosen[0] if chosen else {"label": None, "probability": None}
        assert answer["label"] == first["label"]
        assert answer["probability"] == first["probability"]
        assert answer["set"] is None
        assert answer["coverage"] is None
        assert answer["set_unknown"].startswith("prediction sets are for models with one label")
        sizes.add(len(chosen))
    assert len(sizes) > 1


def test_an_image_may_have_no_label(exported_sets: Exported, tmp_path: Path) -> None:
    """Below all thresholds an answer has no label, which is not an error.

    Missing thresholds are not taken for 0.5.
    """
    package = _with_thresholds(exported_sets, tmp_path, [1.0] * len(CLASSES))
    [answer] = package.answers([photograph(0)], top_k=2)
    assert (answer["label"], answer["probability"], answer["labels"]) == (None, None, [])
    assert len(answer["top_k"]) == 2
    assert answer["error"] is None
    [broken] = package.answers([b"no image"])
    assert broken["labels"] == []
    assert broken["error"]
    for values in ([], [0.5]):
        with pytest.raises(ValueError, match="threshold for each label"):
            _with_thresholds(exported_sets, tmp_path, values)


def _with_thresholds(exported: Exported, folder: Path, values: list[float]) -> PackagedModel:
    description = json.loads(exported.description_file.read_text(encoding="utf-8"))
    description["thresholds"]["values"] = values
    shutil.copy(exported.onnx_file, folder / "model.onnx")
    (folder / "model.json").write_text(json.dumps(description), encoding="utf-8")
    return PackagedModel(folder / "model.onnx", folder / "model.json", threads=1)


def test_the_card_lists_labels_with_thresholds_and_average_precision() -> None:
    """It says what was measured for each label, and that few images gave some the threshold 0.5."""
    labels = tuple(CardLabel(images=7, average_precision=None) for _ in CLASSES)
    facts = CardFacts(name="shapes", labels=labels)
    description = ModelDescription(
        model=vit_choice(), plugins=(), classes=CLASSES, image=image_spec(3),
        task="multi_label", label_calibration=LABEL_CALIBRATION, thresholds=LABEL_THRESHOLDS,
    )  # fmt: skip
    card = model_card(description, facts, parameters=10, check="equal")
    assert "which of 6 labels an image has" in card
    assert "| 1 | down | 0.300 | not known | | 7 |" in card
    assert "0.5 for dotted" in card
    assert "do not sum to 1" in card
    assert "dotted is not calibrated" in card

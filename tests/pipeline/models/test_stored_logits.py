"""The logits of a saved model, from one device or from several."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from patchline.pipeline.evaluation.__main__ import devices_of
from patchline.pipeline.evaluation.prediction_job import EvaluationJob
from patchline.pipeline.models import inference, stored_logits
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.models.probing.chosen_features import ChosenFeatures
from patchline.pipeline.models.stored_logits import logits_of
from tests.pipeline.evaluation.visual_guide.made_guides import make_model

CPU = torch.device("cpu")


def test_several_devices_give_the_logits_and_features_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, whatever the number of images; progress counts the images of all."""
    monkeypatch.setattr(inference, "PREDICTED_TOGETHER", 8)
    predict = functools.partial(inference.predict_logits, batch_size=8)
    monkeypatch.setattr(stored_logits, "predict_logits", predict)
    model, description = make_model({"name": "vit", "depth": 1}, side=8)
    save_model(tmp_path / "model", model, description)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (45, 8, 8, 3), dtype=np.uint8)
    rows = generator.permutation(len(images))
    expected: dict[str, Any] = {}
    for count in (1, 2, 3, 40):
        features = ChosenFeatures(rows[::3])
        progress: list[tuple[int, int]] = []
        logits_NK = logits_of(
            *(tmp_path / "model", images, rows, [CPU] * count),
            lambda *each, progress=progress: progress.append(each),
            features,
        )
        done = [images for images, _ in progress]
        expected = expected or {"logits": logits_NK, "features": features.collected}
        np.testing.assert_array_equal(logits_NK, expected["logits"])
        assert sorted(features.collected) == sorted(rows[::3])
        for row, feature_D in features.collected.items():
            np.testing.assert_array_equal(feature_D, expected["features"][row])
        assert done == sorted(done)
        assert done[-1] == len(rows)


def test_the_gpus_that_have_trained_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each process, but no more than there are; a CPU is one device."""
    own: dict[str, Any] = dict.fromkeys(("model_folder", "manifest_file", "store"), tmp_path)
    job = EvaluationJob(**own, splits=("test",), device="cuda", file=tmp_path, processes=4)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices_of(job) == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert devices_of(job.model_copy(update={"processes": 1})) == [torch.device("cuda", 0)]
    assert devices_of(job.model_copy(update={"device": "cpu"})) == [CPU]

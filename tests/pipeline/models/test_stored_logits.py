"""The logits of a saved model, from one device or from several."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from patchline.pipeline import config_files
from patchline.pipeline.evaluation.__main__ import devices_of
from patchline.pipeline.evaluation.prediction_job import PredictionJob
from patchline.pipeline.models import inference, stored_logits
from patchline.pipeline.models.inference import whole_batches
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import ModelDescription, describe_plugins
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.models.stored_logits import logits_of
from patchline.pipeline.probing.chosen_features import ChosenFeatures
from patchline.plugin_api import ImageSpec

TINY: dict[str, Any] = {
    "embed_dim": 8,
    "depth": 1,
    "num_heads": 2,
    "mlp_dim": 8,
    "patch_embedding": {"name": "linear", "patch_size": 4},
}
CPU = torch.device("cpu")


@pytest.mark.parametrize(("count", "parts"), [(0, 2), (1, 3), (256, 2), (257, 2), (2000, 3)])
def test_parts_have_whole_batches_and_every_image_once(count: int, parts: int) -> None:
    """All but the last part end where a batch of the whole does; no part is empty."""
    divided = whole_batches(count, parts)
    assert [row for each in divided for row in range(count)[each]] == list(range(count))
    assert all(each.stop % inference.PREDICTED_TOGETHER == 0 for each in divided[:-1])
    assert len(divided) <= parts
    assert all(each.stop > each.start for each in divided) or count == 0


def test_several_devices_give_the_logits_and_features_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, whatever the number of images; progress counts the images of all."""
    monkeypatch.setattr(inference, "PREDICTED_TOGETHER", 8)
    predict = functools.partial(inference.predict_logits, batch_size=8)
    monkeypatch.setattr(stored_logits, "predict_logits", predict)
    config = config_files.validated({"name": "tiny", "model": {"name": "vit", **TINY}})
    image = ImageSpec(
        channels=3, height=8, width=8, mean=(0.5,) * 3, std=(0.25,) * 3, resize="crop"
    )
    classes = ("circle", "square", "star")
    described = ModelDescription(
        model=config.model.architecture(),
        plugins=describe_plugins(config.model),
        classes=classes,
        image=image,
    )
    torch.manual_seed(0)
    save_model(tmp_path / "model", build_model(config.model, image, len(classes)), described)
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
    job = PredictionJob(**own, splits=("test",), device="cuda", file=tmp_path, processes=4)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices_of(job) == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert devices_of(job.model_copy(update={"processes": 1})) == [torch.device("cuda", 0)]
    assert devices_of(job.model_copy(update={"device": "cpu"})) == [CPU]

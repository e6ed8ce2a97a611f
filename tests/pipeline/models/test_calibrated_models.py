"""An ensemble averages the probabilities of its members, also from files of before."""

from __future__ import annotations

from pathlib import Path

import torch

from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit, by_member
from patchline.pipeline.models.calibrated_models import Ensemble
from patchline.pipeline.models.model_description import WEIGHTS_FILE, ModelDescription
from patchline.pipeline.models.model_files import load_model, save_model
from patchline.pipeline.workspace.files.sealed_files import read_tensors, write_tensors
from tests.pipeline.conftest import CLASSES, SIDE, image_spec, random_model, vit_choice

BIAS = (0.0, -1.0, -2.0, -0.5, 0.0, -3.0)


def test_members_have_a_temperature_and_a_bias(tmp_path: Path) -> None:
    """Saved and loaded, the mean is that of softmax(logits / T + b); older files have T alone."""
    members = [random_model(3, seed=seed).model for seed in (0, 1)]
    fits = (
        TemperatureFit(temperature=0.5, bias=BIAS, state="fitted"),
        TemperatureFit(temperature=2.0, state="fitted"),
    )
    description = ModelDescription(
        model=vit_choice(), plugins=(), classes=CLASSES, image=image_spec(3), members=2,
        calibration=by_member(fits),
    )  # fmt: skip
    save_model(tmp_path, Ensemble(members, fits, len(CLASSES)), description)
    images = torch.randn((4, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(0))

    def loaded() -> torch.Tensor:
        return torch.softmax(load_model(tmp_path)[0](images), dim=1)

    with torch.inference_mode():
        first, second = (member(images) for member in members)
        second = torch.softmax(second / 2, dim=1)
        expected = (torch.softmax(first / 0.5 + torch.tensor(BIAS), dim=1) + second) / 2
        torch.testing.assert_close(loaded(), expected)
        weights, record = read_tensors(tmp_path / WEIGHTS_FILE)
        del weights["scales_MK"], weights["shifts_MK"]
        weights["temperatures_M"] = torch.tensor([0.5, 2.0])
        write_tensors(tmp_path / WEIGHTS_FILE, weights, record)
        torch.testing.assert_close(loaded(), (torch.softmax(first / 0.5, dim=1) + second) / 2)

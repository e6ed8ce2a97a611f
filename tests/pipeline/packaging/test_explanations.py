"""The predictions of a run that are explained: which they are, and that they can fail alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from pipeline.packaging.chosen_images import ChosenImage, choose_images
from pipeline.packaging.explanations import write_explanations
from tests.pipeline.visual_guide.made_guides import make_model


def _table(folder: Path, predicted: list[str]) -> Path:
    file = folder / "predictions.parquet"
    rows = {
        "split": ["validation", "test", "test", "test", "test"],
        "path": [f"{n}.png" for n in range(5)],
        "label": ["rose"] * 5,
        "predicted": predicted,
        "probability": [0.99, 0.6, 0.9, 0.7, 0.8],
        "row": [10, 11, 12, 13, 14],
    }
    pd.DataFrame(rows).to_parquet(file)
    return file


def test_the_surest_right_and_the_worst_wrong_test_image_are_chosen(tmp_path: Path) -> None:
    """Images of other splits do not count; without an error there is one page."""
    mixed = choose_images(_table(tmp_path, ["rose", "rose", "tulip", "rose", "tulip"]))
    assert [(each.page, each.row) for each in mixed] == [("surest_right", 13), ("worst_wrong", 12)]
    right = choose_images(_table(tmp_path, ["rose"] * 5))
    assert [(each.page, each.row) for each in right] == [("surest_right", 12)]


class Broken(nn.Module):
    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"no answer to {len(images_BCHW)} image")


def test_a_model_that_cannot_be_explained_costs_only_the_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why; the next image is explained nevertheless."""
    model, description = make_model({"name": "vit", "depth": 1})
    images = np.zeros((1, 16, 16, 3), np.uint8)
    chosen = [ChosenImage(page="surest_right", path="a.png", label="rose", row=0)]
    write_explanations(Broken(), description, images, chosen, tmp_path / "one", "flowers")
    assert "The prediction of a.png could not be explained" in caplog.text
    assert not (tmp_path / "one").exists()
    write_explanations(model, description, images, chosen, tmp_path / "two", "flowers")
    assert [file.name for file in (tmp_path / "two").iterdir()] == ["surest_right.html"]

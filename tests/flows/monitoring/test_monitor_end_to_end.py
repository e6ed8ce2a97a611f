"""`patchline monitor` as a person types it, on a trained model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import Run, draw_photo, patchline


@pytest.mark.slow
def test_darker_photos_are_a_drift_for_both_tests(finished_run: Run, tmp_path: Path) -> None:
    """The page shows them beside reference images, read from the training data."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for number in range(60):
        pixels = draw_photo(number % 3, 1000 + number).astype(np.float64) * 0.2
        Image.fromarray(pixels.astype(np.uint8)).save(inbox / f"{number}.png")
    env = {"MLFLOW_TRACKING_URI": finished_run.tracking_uri}
    done = patchline(
        "monitor", "photos/1", inbox, "--checks", "30", "--json", cwd=tmp_path, env=env
    )
    assert done.code == 3, done.err
    assert {name for name, each in done.json["tests"].items() if each["p_value"] <= each["level"]}
    assert set(done.json["tests"]) == {"outputs", "features"}
    page = Path(done.json["page"]).read_text("utf-8")
    assert page.count("data:image/png") == 12 * 4
    assert "not on this machine" not in page

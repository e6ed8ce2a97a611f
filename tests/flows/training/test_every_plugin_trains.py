"""Every built-in patch embedding and model learns to tell striped photos apart, by a whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.plugin_system.plugin_loader import Kind, installed
from tests.conftest import write_photos
from tests.flows.training.runs import ran

_GOOD = 0.8
"""Share of the test images. Guessing one of three classes reaches this in 1 of 10,000 runs."""


def _built_in(kind: Kind) -> list[str]:
    return [each.name for each in installed(kind) if each.distribution == "patchline"]


@pytest.fixture(scope="module")
def stripes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with 240 photos of 32x32 pixels in 3 classes."""
    folder = tmp_path_factory.mktemp("stripes")
    write_photos(folder / "photos", images=80)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    "choice",
    [
        *(f"--model.patch-embedding.name {name}" for name in _built_in("patch_embedding")),
        *(f"--model.name {name}" for name in _built_in("model") if name != "vit"),
    ],
)
def test_learns_and_is_registered(stripes: Path, choice: str) -> None:
    """The run ends with a registered version whose test accuracy no guess reaches."""
    settings = "--preset none --training.epochs 25 --training.batch-size 16"
    done, _ = ran(stripes, f"photos {choice} {settings} --evaluation.corruptions 0")
    accuracy = done["metrics"]["test/accuracy"]
    assert accuracy["n"] >= 20
    assert accuracy["value"] >= _GOOD, accuracy
    assert int(done["version"]) >= 1

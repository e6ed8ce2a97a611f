"""Every built-in patch embedding and model learns to tell striped photos apart, by a whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.plugin_system.plugin_loader import installed
from tests.conftest import patchline, write_photos

_GOOD = 0.8
"""Share of the test images. Guessing one of three classes reaches this in 1 of 10,000 runs."""

EMBEDDINGS = [e.name for e in installed("patch_embedding") if e.distribution == "patchline"]
MODELS = [e.name for e in installed("model") if e.distribution == "patchline"]
_CHOICES = [
    *(
        pytest.param(("--model.patch-embedding.name", name), id=f"vit-{name}")
        for name in EMBEDDINGS
    ),
    *(pytest.param(("--model.name", name), id=name) for name in MODELS if name != "vit"),
]


@pytest.fixture(scope="module")
def stripes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with 240 photos of 32x32 pixels in 3 classes."""
    folder = tmp_path_factory.mktemp("stripes")
    write_photos(folder / "photos", classes=3, images=80)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("choice", _CHOICES)
def test_learns_and_is_registered(stripes: Path, choice: tuple[str, str]) -> None:
    """The run ends with a registered version whose test accuracy no guess reaches."""
    done = patchline(
        "run", "photos", *choice, "--preset", "none", "--training.epochs", "25",
        "--training.batch-size", "16", "--json", cwd=stripes, timeout=900,
    )  # fmt: skip
    assert done.code == 0, done.err
    accuracy = done.json["metrics"]["test/accuracy"]
    assert accuracy["n"] >= 20
    assert accuracy["value"] >= _GOOD, accuracy
    assert int(done.json["version"]) >= 1

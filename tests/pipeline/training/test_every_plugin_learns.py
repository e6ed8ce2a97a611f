"""Every built-in patch embedding and model learns to tell striped photos apart."""

from __future__ import annotations

from typing import Any

import pytest

from patchline.pipeline.plugin_system.plugin_loader import Kind, list_installed
from tests.pipeline.training.trained_jobs import SETTINGS, Make, trained

_OF_LIBRARIES = ("timm", "torchvision")
"""Models that equal another library's, see `test_adapters.py`."""
_SMALL = {name: value for name, value in SETTINGS["model"].items() if name != "name"}
_GOOD = 0.8
"""Share of the validation images. Guessing one of three classes reaches this in 1 of 10,000."""


def _built_in(kind: Kind) -> list[str]:
    return [each.name for each in list_installed(kind) if each.distribution == "patchline"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        *({"patch_embedding": {"name": name}} for name in _built_in("patch_embedding")),
        *(
            {"name": name, **_SMALL}
            for name in _built_in("model")
            if name not in ("vit", *_OF_LIBRARIES)
        ),
    ],
    ids=lambda model: model.get("name") or model["patch_embedding"]["name"],
)
def test_tells_images_apart_that_it_was_not_trained_on(make: Make, model: dict[str, Any]) -> None:
    """After 10 epochs on 50 photos it recognises stripes of other phases and colours."""
    result = trained(make(model=model, training={"epochs": 10, "batch_size": 8}))
    assert max(record.validation_accuracy for record in result.history) >= _GOOD

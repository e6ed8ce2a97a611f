"""The augmentation `custom` builds a user's albumentations pipeline, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import albumentations
import numpy as np
import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.plugin_api import AugmentationContext, DataTraits
from patchline.plugins.augmentations.custom import CustomConfig, build

TRAITS = DataTraits(channels=3, height=16, width=16, num_classes=2, mirror_symmetric=True)
CONTEXT = AugmentationContext(channels=3, height=16, width=16)
PIPELINE = albumentations.Compose(
    [albumentations.OneOf([albumentations.HorizontalFlip(p=1.0)], p=1.0)]
)


@pytest.mark.parametrize(
    ("ending", "pipeline"), [("yaml", PIPELINE), ("json", albumentations.HorizontalFlip(p=1.0))]
)
def test_a_saved_pipeline_is_applied(tmp_path: Path, ending: Any, pipeline: Any) -> None:
    """What albumentations.save wrote, a Compose or one transform, changes images as it does."""
    file = tmp_path / f"pipeline.{ending}"
    albumentations.save(pipeline, file, data_format=ending)
    config = CustomConfig(file=str(file)).resolved_for(TRAITS)
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    assert np.array_equal(build(config, CONTEXT)(image=image)["image"], image[:, ::-1])


def test_a_changed_file_retrains(tmp_path: Path) -> None:
    """The digest of the file is among the settings that decide whether a stage is repeated."""
    file = tmp_path / "pipeline.json"
    keys = []
    for probability in (0.25, 0.75):
        albumentations.save(albumentations.HorizontalFlip(p=probability), file)
        settings = CustomConfig(file=str(file)).resolved_for(TRAITS).model_dump()
        config = RunConfig.model_validate({"augmentation": {"name": "custom", **settings}})
        keys.append(stage_keys.settings(config, "augmentation"))
    assert keys[0]["augmentation.file"] == keys[1]["augmentation.file"] == str(file)
    assert keys[0]["augmentation.sha256"] != keys[1]["augmentation.sha256"]


def test_a_file_that_changed_since_is_refused(tmp_path: Path) -> None:
    """A recorded run is not reproduced with another pipeline."""
    file = tmp_path / "pipeline.json"
    albumentations.save(albumentations.HorizontalFlip(p=0.5), file)
    recorded = CustomConfig(file=str(file)).resolved_for(TRAITS)
    albumentations.save(albumentations.HorizontalFlip(p=0.6), file)
    for use in (lambda: recorded.resolved_for(TRAITS), lambda: build(recorded, CONTEXT)):
        with pytest.raises(ConfigError, match=r"has changed: .* Restore the file"):
            use()


def _nested(name: str, **arguments: Any) -> str:
    inner = {"__class_fullname__": name, "p": 1.0, **arguments}
    outer = {"__class_fullname__": "Compose", "transforms": [inner]}
    return json.dumps({"__version__": albumentations.__version__, "transform": outer})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_nested("Lambda", image="print"), "names the transform Lambda"),
        (_nested("os.system"), "names the transform os.system"),
        (_nested("HorizontalFlip", strength=3), "strength"),
        (_nested("GaussNoise", std_range=[5, 6]), "cannot build the pipeline"),
        ('{"transform": {"transforms": [{"p": 1}]}}', "names the transform None"),
        ("!!python/object/apply:os.getcwd []", "is not valid YAML or JSON"),
        (" " * 1_000_001, "larger than 1 MB"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Code, unknown transforms and wrong arguments are errors that name the file."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        CustomConfig(file=str(file)).resolved_for(TRAITS)
    assert words in str(raised.value)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize("name", [None, "missing.yaml", "."])
def test_a_file_is_needed(name: str | None) -> None:
    """Without a readable file, the error names the setting."""
    with pytest.raises(ConfigError, match=r"augmentation\.file"):
        CustomConfig(file=name).resolved_for(TRAITS)

"""Which patch embedding feeds a model: the model's own, unless another is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from patchline.pipeline import config_files
from patchline.pipeline.config import ModelChoice
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system.plugin_loader import list_installed
from patchline.pipeline.plugin_system.plugin_settings import name_patch_embedding
from tests.conftest import write_photos
from tests.made.servers import Command

OWN = {
    "vit": "conv",
    "simple_vit": "conv",
    "vit_registers": "conv",
    "rope_vit": "conv",
    "cct": "cct",
    "vit_small_data": "shifted",
    "torchvision": "none",
    "timm": "none",
}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of a few images of 16 pixels."""
    return write_photos(tmp_path / "photos", classes=2, images=4, side=16)


def _planned(run_here: Command, *arguments: str | Path) -> Any:
    """Return the resolved settings that `run --preset none --dry-run` prints."""
    return yaml.safe_load(run_here.out("run", *arguments, "--preset", "none", "--dry-run"))


def _embedding(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the checked embedding of settings as a file holds them."""
    return config_files.validate_config(settings).model.patch_embedding.model_dump()


def test_a_model_is_fed_by_its_own_embedding_unless_another_is_named() -> None:
    """Where nothing is chosen, or `auto`, the checked config names the model's own embedding."""
    models = [entry.name for entry in list_installed("model") if entry.distribution == "patchline"]
    assert set(models) == set(OWN)
    for model, own in OWN.items():
        for chosen in ({}, {"patch_embedding": {"name": "auto"}}):
            assert _embedding({"model": {"name": model, **chosen}})["name"] == own
        choice = name_patch_embedding(ModelChoice(name=model))
        assert (choice.name, choice.settings) == (own, {})
    for model in ("vit", "cct", "vit_small_data"):
        for embedding in ("conv", "cct", "overlap"):
            settings = {"model": {"name": model, "patch_embedding": {"name": embedding}}}
            assert _embedding(settings)["name"] == embedding


def test_settings_of_the_own_embedding_need_no_name() -> None:
    """A file may set the own embedding's settings alone; those of another are unknown."""
    own = _embedding({"model": {"name": "cct", "patch_embedding": {"num_layers": 1}}})
    assert (own["name"], own["num_layers"]) == ("cct", 1)
    for wrong, words in (
        ({"patch_size": 4}, r"no setting model\.patch_embedding\.patch_size"),
        ({"name": "none"}, r"cct needs a patch embedding\. Set it to cct"),
    ):
        with pytest.raises(ConfigError, match=words):
            _embedding({"model": {"name": "cct", "patch_embedding": wrong}})


def test_a_resolved_config_keeps_its_embedding(photos: Path, run_here: Command) -> None:
    """A plan with conv, run again with another model, keeps conv and its settings."""
    first = _planned(run_here, photos, "--model.patch-embedding.patch-size", "8")
    conv = {"name": "conv", "patch_size": 8}
    assert first["model"]["patch_embedding"] == conv
    assert (first["name"], first["data"]["image_size"]) == ("photos", 16)
    assert not Path("mlflow.db").exists()  # nothing is trained
    plan, own = Path("plan.yaml"), Path("own.yaml")
    plan.write_text(yaml.safe_dump(first))
    own.write_text("model: {patch_embedding: {patch_size: 8}}")
    assert _planned(run_here, "--config", plan) == first
    for file, model in ((own, {"patch_embedding": {"name": "conv"}}), (plan, {"name": "cct"})):
        config = config_files.build_config(str(photos), file=file, flags={"model": model})
        assert config.model.patch_embedding.model_dump() == conv
    back = ("--model.name", "cct", "--model.patch-embedding.name", "auto")
    found = _planned(run_here, "--config", plan, *back)["model"]["patch_embedding"]
    assert found["name"] == "cct"
    assert None not in found.values()


@pytest.mark.parametrize(
    ("model", "flag", "value", "words"),
    [
        ("torchvision", "patch-size", 4, ["patch-size"]),
        ("vit", "patch-size", 5, ["patch_size 5", "16x16", "4, 8"]),
        ("cct", "num-layers", 0, ["patch_embedding.num_layers", "from 1 to"]),
    ],
)
def test_a_wrong_value_is_explained_whatever_feeds_the_model(
    photos: Path, run_here: Command, model: str, flag: str, value: int, words: list[str]
) -> None:
    """The answer is one sentence and exit code 2; `test_adapters.py` has what takes none."""
    run = f"run {photos} --preset none --dry-run --model.name {model}"
    given = f"--model.patch-embedding.{flag} {value}"
    sentence = run_here.refusal(f"{run} {given}")
    for word in words:
        assert word in sentence


@pytest.mark.parametrize("model", ["vit", "torchvision"])
def test_the_schema_has_the_embedding_of_the_model(run_here: Command, model: str) -> None:
    """`run --schema` describes every setting; the default embedding is the model's own."""
    schema = json.loads(run_here.out("run --schema --model.name", model))
    assert schema["additionalProperties"] is False
    for section in schema["$defs"].values():
        for name, setting in section.get("properties", {}).items():
            assert setting.get("description"), name
    reference = json.dumps(schema["$defs"][f"{model}_model"]["properties"]["patch_embedding"])
    [own] = [part for key, part in schema["$defs"].items() if f'"#/$defs/{key}"' in reference]
    assert own["properties"]["name"]["default"] == OWN[model]

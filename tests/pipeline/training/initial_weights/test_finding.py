"""Initial weights are found, converted once, and kept; what cannot be used is a sentence."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from patchline.pipeline import config_files
from patchline.pipeline.errors import ConfigError, PipelineError
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import ModelDescription, load_description
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.models.provenance import Provenance
from patchline.pipeline.registry import registration
from patchline.pipeline.training.initial_weights.finding import find
from patchline.pipeline.training.initial_weights.loading import load_into
from patchline.pipeline.training.initial_weights.record import (
    read_stored_provenance,
    weights_folder,
)
from patchline.pipeline.training.initial_weights.starting_point import find_starting_point
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import NewRun
from patchline.plugin_api import ImageSpec
from tests.pipeline.conftest import image_spec
from tests.pipeline.registry.made_versions import made_manifest, made_package, seen_in

CLASSES = tuple("abcdefg")


def timm_model(seed: int = 0) -> torch.nn.Module:
    """Return a small ViT of timm with random weights and seven classes."""
    torch.manual_seed(seed)
    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4}
    model: torch.nn.Module = timm.models.VisionTransformer(**settings, num_classes=7)
    return model.eval()


def written(file: Path, seed: int = 0) -> Path:
    """Write the small ViT as a file of weights."""
    save_file(
        {name: each.contiguous() for name, each in timm_model(seed).state_dict().items()}, file
    )
    return file


def test_a_file_of_another_library_gives_its_logits(tmp_path: Path) -> None:
    """From the file's name to a model that computes the same: no other setting is needed."""
    file, workspace = written(tmp_path / "small.safetensors"), tmp_path / "work"
    flags = {"model": {"init": str(file), "num_heads": 4}}
    start = find_starting_point(config_files.build_config(None, flags=flags), "x", workspace)
    assert start.weights is not None
    data = start.config.data
    image = ImageSpec(
        channels=3, height=32, width=32, mean=data.mean or (), std=data.std or (), resize="crop"
    )
    model = build_model(start.config.model, image, 7)
    load_into(model, start.weights, weights_folder(workspace, start.weights.sha256), CLASSES)
    images_BCHW = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model.eval()(images_BCHW), timm_model()(images_BCHW))
    assert "small.safetensors" in start.notes()[0]
    assert start.tags()["patchline.initial_weights"].startswith("small.safetensors (")


def saved_model(
    folder: Path,
    provenance: Provenance | None = None,
    classes: tuple[str, ...] = CLASSES,
    *,
    channels: int = 3,
    run_id: str = "0" * 32,
    **settings: Any,
) -> Path:
    """Save a small model as a run does, and return its folder."""
    size = {"embed_dim": 24, "depth": 1, "num_heads": 2, "mlp_dim": 24}
    choice = config_files.validate_config({"model": {**size, **settings}}).model
    image = image_spec(channels)
    description = ModelDescription(
        model=choice, plugins=(), classes=classes, image=image, run_id=run_id
    )
    save_model(folder, build_model(choice, image, len(classes)), description, provenance)
    return folder


def test_weights_are_kept(tmp_path: Path) -> None:
    """A recorded digest is enough after the file is gone; another file is refused."""
    file, workspace = written(tmp_path / "small.safetensors"), tmp_path / "work"
    first = find(str(file), workspace, "x")
    assert first is not None
    written(file, seed=1)
    second = find(str(file), workspace, "x")
    assert second is not None
    assert second.sha256 != first.sha256
    kept = find(str(file), workspace, "x", sha256=first.sha256)
    assert kept is not None
    assert kept.settings == first.settings
    file.unlink()
    assert find(str(file), workspace, "x", sha256=first.sha256) == kept
    shutil.rmtree(weights_folder(workspace, first.sha256))
    written(file, seed=1)
    with pytest.raises(ConfigError, match="has changed since its weights were recorded"):
        find(str(file), workspace, "x", sha256=first.sha256)


def test_a_model_of_ours_is_recognized(tmp_path: Path) -> None:
    """The file beside a `model.json` keeps its plugin, settings and names of classes.

    It says that the head alone was trained, where no run of this store can.
    """
    saved = saved_model(tmp_path / "saved", name="cct", channels=1)
    found = find(str(saved / "model.safetensors"), tmp_path / "work", "x")
    assert found is not None
    assert (found.settings["name"], found.settings["embed_dim"]) == ("cct", 24)
    assert (found.classes, found.channels, found.image_size) == (CLASSES, 1, 16)
    assert found.run_id == ""  # it is a run of another store
    assert not found.head_only
    described = load_description(saved).model_copy(update={"head_only": True})
    write_text(saved / "model.json", described.model_dump_json())
    again = find(str(saved / "model.safetensors"), tmp_path / "work", "x")
    assert again is not None
    assert again.head_only


def test_a_copied_model_knows_what_it_has_seen(tmp_path: Path) -> None:
    """The file of its weights says it, so the run, its store and its id do not matter.

    Without that record it is unknown, and so is everything that starts from it.
    """
    made = seen_in(made_manifest())
    for name, provenance, state in (("known", made, "known"), ("silent", None, "unknown")):
        saved = saved_model(tmp_path / name, provenance)
        described = load_description(saved).model_copy(update={"run_id": "f" * 32})
        write_text(saved / "model.json", described.model_dump_json())
        (tmp_path / "copy").mkdir(exist_ok=True)
        for file in ("model.safetensors", "model.json"):
            shutil.copy(saved / file, tmp_path / "copy" / file)
        found = find(str(tmp_path / "copy" / "model.safetensors"), tmp_path / "work", "x")
        assert found is not None
        assert found.provenance.state == state
        kept = read_stored_provenance(weights_folder(tmp_path / "work", found.sha256))
        assert kept.images == (made.images if provenance else Provenance().images)
        assert kept.summary == found.provenance
    assert found is not None
    assert "there is no record of the images" in found.provenance.unknown[0]


def test_weights_without_their_description_are_a_sentence(tmp_path: Path) -> None:
    """The remedy is to copy the other file too, not to use another layout."""
    copied = shutil.copy(saved_model(tmp_path / "saved") / "model.safetensors", tmp_path)
    with pytest.raises(
        ConfigError, match=r"the model\.json that describes its model is not beside"
    ):
        find(str(copied), tmp_path / "work", "x")


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("gone.safetensors", "does not exist"),
        ("folder", "neither a file nor a registered model nor a run"),
        ("./folder", "is a folder, and no model version has this name"),
        ("folder.bin", "is a folder"),
        ("text.safetensors", "text.safetensors"),
        ("text.pth", "text.pth"),
        ("no_such_model@champion", "no_such_model"),
        ("12345678", "neither a file nor a registered model nor a run"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(reference: str, words: str, tmp_path: Path) -> None:
    """A missing file, a folder, a text and an unknown name are told apart."""
    for name in ("folder", "folder.bin"):
        (tmp_path / name).mkdir()
    for name in ("text.safetensors", "text.pth"):
        (tmp_path / name).write_text("no weights", "utf-8")
    with pytest.raises(PipelineError, match=words) as caught:
        find(reference, tmp_path / "work", "x")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "work").rglob("*"))


def registered_encoder(name: str, folder: Path, provenance: Provenance | None = None) -> str:
    """Register what a pre-training without labels leaves, and return the run's id."""
    new = NewRun(experiment=name, name=name, command="patchline run", params={}, tags={})
    with tracked_run.open_run(new, folder / "runs") as run:
        package = made_package(run.folder / "package")
        saved_model(package.folder, provenance, (), run_id=run.run_id)
        model_id = registration.find_logged_model(run, name, "image-encoder")
        registration.register(run, model_id, name, package, {})
    return run.run_id


@pytest.mark.usefixtures("own_store")
def test_a_classifier_starts_from_aregistered_encoder(tmp_path: Path) -> None:
    """All weights but the head are its own, the images are as it saw them, and all is trained.

    A folder with the name of the version is no file of weights.
    """
    (tmp_path / "moths-encoder" / "1").mkdir(parents=True)
    run_id, workspace = registered_encoder("moths-encoder", tmp_path), tmp_path / "work"
    asked = config_files.build_config(None, flags={"model": {"init": "moths-encoder/1"}})
    start = find_starting_point(asked, "moths", workspace, None, CLASSES)
    found, data, image = start.weights, start.config.data, image_spec(3)
    assert found is not None
    assert (found.kind, found.run_id, found.classes) == ("version", run_id, ())
    assert start.tags()["patchline.initial_run_id"] == run_id
    assert (data.image_size, data.mean, start.config.training.trainable) == (16, image.mean, "all")
    model = build_model(start.config.model, image, len(CLASSES))
    done = load_into(model, found, weights_folder(workspace, found.sha256), CLASSES)
    new = {each.weight for each in done if each.action != "used"}
    assert new == {"head.weight", "head.bias"}


def test_there_is_no_champion_yet(tmp_path: Path) -> None:
    """A model without a champion has no initial weights, and no store is made by asking."""
    for reference in ("champion", "x@champion"):
        assert find(reference, tmp_path / "work", "x") is None
    with pytest.raises(ConfigError, match="y@champion was not found"):
        find("y@champion", tmp_path / "work", "x")
    assert not (tmp_path / "mlflow.db").exists()

"""A teacher is a whole classifier with named classes, and is kept in the workspace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import validated
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.metrics.label_calibration import LabelCalibration
from patchline.pipeline.models.inference import normalised
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import WEIGHTS_FILE, ModelDescription
from patchline.pipeline.models.model_files import load_model, save_model
from patchline.pipeline.provenance.provenance import Provenance
from patchline.pipeline.teaching.finding_teacher import with_teacher
from patchline.pipeline.teaching.teacher import check_task, check_teacher, find_teacher
from patchline.plugin_api import ImageSpec
from tests.pipeline.models.pretrained.published_files import PUBLISHED

IMAGE = ImageSpec(channels=1, height=16, width=16, mean=(0.2,), std=(0.3,), resize="squash")
NAMES = ("ant", "bee", "cat", "dog", "eel")


def config_of(teacher: Path | str, **training: str) -> RunConfig:
    """Return the config of a run with a teacher."""
    return validated({"training": {"teacher": str(teacher), **training}})


def saved(
    folder: Path, classes: tuple[str, ...] = ("a", "b"), seed: int = 0, **described: Any
) -> Path:
    """Save a small model as a run does."""
    small = {"name": "vit", "embed_dim": 24, "depth": 1, "num_heads": 2, "mlp_dim": 24}
    choice = validated({"model": small}).model
    torch.manual_seed(seed)
    model: nn.Module = build_model(choice, IMAGE, len(classes))
    description = ModelDescription(
        model=choice, plugins=(), classes=classes, image=IMAGE, **described
    )
    save_model(folder, model, description, Provenance())
    return folder


def named(folder: Path, names: tuple[str, ...] | None = NAMES) -> Path:
    """Write a ViT of transformers with the names of its classes; None for the usual numbers."""
    published = PUBLISHED["transformers ViT"](folder)
    config = json.loads((folder / "config.json").read_text())
    labels = names or tuple(f"LABEL_{number}" for number in range(len(NAMES)))
    config["id2label"] = {str(number): name for number, name in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps(config))
    return published.file


def test_a_model_of_ours_is_a_folder_or_its_file(tmp_path: Path) -> None:
    """It is kept in the workspace: the same run can be repeated when the folder is gone."""
    folder, workspace = saved(tmp_path / "mine"), tmp_path / "work"
    teacher = find_teacher(config_of(folder), workspace)
    assert find_teacher(config_of(folder / WEIGHTS_FILE), workspace) == teacher
    assert (teacher.classes, teacher.image) == (("a", "b"), IMAGE)
    assert teacher.described() == (
        "model.safetensors (vit, 16x16 pixels; its test accuracy is not known)"
    )
    assert teacher.provenance.summary.is_known
    images_BCHW = torch.randn(2, 1, 16, 16)
    kept, original = (load_model(each)[0] for each in (teacher.folder, folder))
    assert torch.equal(kept(images_BCHW), original(images_BCHW))
    recorded = with_teacher(config_of(folder), teacher)
    shutil.rmtree(folder)
    assert find_teacher(recorded, workspace) == teacher


def test_another_model_under_the_recorded_name_is_refused(tmp_path: Path) -> None:
    """A run that is repeated has the same teacher, or a sentence."""
    folder, workspace = saved(tmp_path / "mine"), tmp_path / "work"
    recorded = with_teacher(config_of(folder), find_teacher(config_of(folder), workspace))
    saved(folder, seed=1)
    shutil.rmtree(workspace)
    with pytest.raises(ConfigError, match=r"training.teacher .* has changed since the run rec"):
        find_teacher(recorded, workspace)
    assert find_teacher(config_of(folder), workspace).sha256 != recorded.record.teacher_sha256


def test_published_weights_teach_if_their_classes_have_names(tmp_path: Path) -> None:
    """The kept model computes what that of transformers does, normalised in its own way."""
    file, workspace = named(tmp_path), tmp_path / "work"
    teacher = find_teacher(config_of(file), workspace)
    assert teacher.classes == NAMES
    assert not teacher.provenance.summary.is_known
    model, description = load_model(teacher.folder)
    assert description.image == teacher.image
    side = teacher.image.height
    images_BHWC = torch.randint(0, 256, (2, side, side, 3), dtype=torch.uint8)
    inputs_BCHW = normalised(images_BHWC, teacher.image)
    import transformers

    theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        torch.testing.assert_close(
            model(inputs_BCHW), theirs(inputs_BCHW).logits, atol=1e-4, rtol=1e-3
        )


@pytest.mark.parametrize("kind", ["numbered", "encoder", "sets", "missing", "none"])
def test_what_cannot_teach_is_refused_before_data_is_read(tmp_path: Path, kind: str) -> None:
    """The sentence names the setting and a remedy."""
    workspace, reference = tmp_path / "work", tmp_path / "missing.safetensors"
    message = r"training.teacher .*missing.safetensors does not exist"
    if kind == "numbered":
        reference = named(tmp_path, None)
        message = r"does not say which classes its outputs are. Train a model .* --model.init"
    elif kind == "encoder":
        reference = saved(tmp_path / "encoder", ()) / WEIGHTS_FILE
        message = r"is an encoder, which knows no classes. Fine-tune it"
    elif kind == "sets":
        reference = saved(tmp_path / "sets", task="multi_label") / WEIGHTS_FILE
        message = r"predicts sets of labels, but the images have one label. Name a model that was"
    elif kind == "none":
        reference = Path("hf:no/such-model")
        message = r"training.teacher hf:no/such-model has not been downloaded yet. Add --download"
    config = config_of(reference)
    data = config.data.model_copy(update={"task": "single_label"})
    with pytest.raises(ConfigError, match=message):
        check_teacher(config.model_copy(update={"data": data}), workspace)


def test_a_teacher_of_sets_is_its_weights_and_its_calibration(tmp_path: Path) -> None:
    """The same weights with other scales predict other targets, so they are another teacher."""
    found = []
    for number, scale in enumerate((None, 2.0)):
        calibration = LabelCalibration.none(2)
        if scale:
            calibration = calibration.model_copy(update={"scales": (scale, 1.0)})
        fits: dict[str, Any] = {"label_calibration": calibration} if scale else {}
        folder = saved(tmp_path / str(number), task="multi_label", **fits)
        found.append(find_teacher(config_of(folder / WEIGHTS_FILE), tmp_path / "work"))
    assert found[0].sha256 != found[1].sha256
    assert found[0].described().endswith("(vit, 16x16 pixels; its test mAP is not known)")
    with pytest.raises(ConfigError, match="predicts sets of labels, but the images have one label"):
        check_task(found[0], "single_label")
    check_task(found[0], "multi_label")


def test_a_head_is_not_taught() -> None:
    """Its fit knows labels only, and the sentence says what to set."""
    with pytest.raises(ConfigError, match=r"training.trainable is head, but training.teacher is"):
        validated(
            {
                "model": {"init": "a/1"},
                "training": {"teacher": "flowers@champion", "trainable": "head"},
            }
        )

"""A teacher is a whole classifier with named classes, and is kept in the workspace."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import validate_config
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.evaluation.metrics.label_calibration import LabelCalibration
from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import WEIGHTS_FILE, ModelDescription
from patchline.pipeline.models.model_files import load_model, save_model
from patchline.pipeline.models.provenance import Provenance
from patchline.pipeline.training.distillation.job import class_columns
from patchline.pipeline.training.distillation.teacher import (
    check_teacher,
    find_teacher,
    with_teacher,
)
from patchline.plugin_api import ImageSpec
from tests.pipeline.models.pretrained.published_files import PUBLISHED
from tests.pipeline.training.trained_jobs import SETTINGS

IMAGE = ImageSpec(channels=1, height=16, width=16, mean=(0.2,), std=(0.3,), resize="squash")
NAMES = ("ant", "bee", "cat", "dog", "eel")


def config_of(teacher: Path | str, **training: str) -> RunConfig:
    """Return the config of a run with a teacher."""
    return validate_config({"training": {"teacher": str(teacher), **training}})


def saved(folder: Path, classes: Any = ("a", "b"), seed: int = 0, **described: Any) -> Path:
    """Save a small model as a run does."""
    choice = validate_config({"model": SETTINGS["model"]}).model
    torch.manual_seed(seed)
    model = build_model(choice, IMAGE, len(classes))
    own = ModelDescription(model=choice, plugins=(), classes=classes, image=IMAGE, **described)
    save_model(folder, model, own, Provenance())
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
    inputs_BCHW = normalize(images_BHWC, teacher.image)
    theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path).eval()
    found, expected = model(inputs_BCHW), theirs(inputs_BCHW).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "a.pt", r"training.teacher .*a.pt does not exist"),
        (lambda folder: named(folder, None), r"does not say which classes .* --model.init"),
        (lambda folder: saved(folder, ()), r"is an encoder, which knows no classes. Fine-tune it"),
        (lambda folder: saved(folder, task="multi_label"), r"predicts sets of labels, but the im"),
        (
            lambda _: "hf:no/such-model",
            r"no/such-model has not been downloaded yet. Add",
        ),
    ],
    ids=["missing", "numbered", "encoder", "sets", "not downloaded"],
)
def test_what_cannot_teach_is_refused_before_data_is_read(
    tmp_path: Path, make: Callable[[Path], Any], message: str
) -> None:
    """The sentence names the setting and a remedy."""
    config = validate_config(
        {"training": {"teacher": str(make(tmp_path / "x"))}, "data": {"task": "single_label"}}
    )
    with pytest.raises(ConfigError, match=message):
        check_teacher(config, tmp_path / "work")


def test_a_teacher_of_sets_is_its_weights_and_its_calibration(tmp_path: Path) -> None:
    """The same weights with other scales predict other targets, so they are another teacher."""
    found = []
    for scale in (1.0, 2.0):
        calibration = LabelCalibration.none(2).model_copy(update={"scales": (scale, 1.0)})
        fits: dict[str, Any] = {"task": "multi_label", "label_calibration": calibration}
        folder = saved(tmp_path / str(scale), **fits)
        found.append(find_teacher(config_of(folder / WEIGHTS_FILE), tmp_path / "work"))
    assert found[0].sha256 != found[1].sha256
    assert found[0].described().endswith("(vit, 16x16 pixels; its test mAP is not known)")


def test_a_head_is_not_taught() -> None:
    """Its fit knows labels only, and the sentence says what to set."""
    with pytest.raises(ConfigError, match=r"training.trainable is head, but training.teacher is"):
        validate_config(
            {
                "model": {"init": "a/1"},
                "training": {"teacher": "flowers@champion", "trainable": "head"},
            }
        )


def test_classes_that_only_the_teacher_knows_are_left_out_and_said() -> None:
    """What becomes of their probabilities is said, too."""
    assert not class_columns("t/1", ("a",), ("a",)).note()
    columns = class_columns("t/1", ("a", "b", "c", "d"), ("d", "b"))
    assert (columns.columns, columns.left_out) == ((3, 1), ("a", "c"))
    assert columns.note() == (
        "the teacher knows 2 classes that the data does not have (a, c): they are left out, and "
        "its probabilities of the other 2 are scaled to add up to 1"
    )


def test_a_teacher_that_does_not_know_a_class_is_refused() -> None:
    """Its name and the names of the classes help to find the right one."""
    with pytest.raises(ConfigError, match=r"t/1 does not know 1 class of the data: tulip; it kn"):
        class_columns("t/1", ("LABEL_0", "rose"), ("rose", "tulip"))

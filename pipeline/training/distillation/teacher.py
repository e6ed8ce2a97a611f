"""Find the teacher of a run, compare it with the data, and keep it in the workspace.

The teacher lies in a folder named after the digest of its weights, as every model of Patchline
does: `model.safetensors` and `model.json`, whatever it was found as. So resuming and repeating a
run need nothing else.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from patchline.pipeline.config import ModelChoice, RunConfig
from patchline.pipeline.data.ingested_data import IngestedData, SeenBefore
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.seen_images import count_seen_images
from patchline.pipeline.errors import ConfigError, PipelineError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import (
    DESCRIPTION_FILE,
    WEIGHTS_FILE,
    ModelDescription,
    describe_plugins,
    load_description,
)
from patchline.pipeline.models.provenance import Provenance, provenance_of, together
from patchline.pipeline.registry.registered_models import TEST_IMAGES_TAG
from patchline.pipeline.training.config import with_changes
from patchline.pipeline.training.distillation.job import class_columns
from patchline.pipeline.training.initial_weights import finding, recipe
from patchline.pipeline.training.initial_weights.record import (
    InitialWeights,
    WeightsKind,
    read_stored_provenance,
    weights_folder,
    weights_name,
)
from patchline.pipeline.training.initial_weights.starting_point import StartingPoint
from patchline.pipeline.workspace.files.atomic_files import replace_file, storage_errors
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.pipeline.workspace.tracking.tracking_store import client, store_exists
from patchline.plugin_api import ImageSpec

SETTING = "training.teacher"
FOLDER = "teachers"
"""Folder of the teachers in a workspace."""
_RECORD_FILE = "teacher.json"
_METRICS = {SINGLE_LABEL: "accuracy", MULTI_LABEL: "mAP"}
"""What the test of a model of each task says about it."""


class Teacher(FrozenModel):
    """A model that predicts the images of a run."""

    reference: str
    """An absolute path, published weights, a model version such as `flowers/3`, or a run's id."""
    kind: WeightsKind
    sha256: str
    """SHA-256 of the file of its weights as it was found; of a multi-label model, with its
    calibration."""
    folder: Path
    """Folder in the workspace that holds the model."""
    classes: tuple[str, ...]
    """Classes in the order of its outputs."""
    image: ImageSpec
    """How it sees an image."""
    model: str
    """Name of its plugin."""
    task: Task = SINGLE_LABEL
    """What it predicts for an image: one class, or a set of labels."""
    run_id: str = ""
    """The MLflow run that trained it, if one of this store did."""
    test_score: float | None = None
    """Accuracy, or mAP of a multi-label model, as that run reported; None if it is not known."""
    test_images: str = ""
    """The version of the images that this score belongs to; empty if it is not known."""
    same_test_images: bool | None = None
    """Whether these are the test images of the run that it teaches; None if that is not known."""

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        return weights_name(self.reference, self.kind)

    def described(self) -> str:
        """Return what it is, and how good, in a few words."""
        size = f"{self.image.width}x{self.image.height} pixels"
        return f"{self.name} ({self.model}, {size}; {self.tested()})"

    def tested(self) -> str:
        """Return its test accuracy or mAP, as far as it is known, and on which images."""
        metric = f"test {_METRICS[self.task]}"
        if self.test_score is None:
            return f"its {metric} is not known"
        on = {
            True: "the same test images",
            False: "other test images than those of this run",
            None: "its own test images",
        }[self.same_test_images]
        return f"{metric} {self.test_score:.1%} on {on}"

    @property
    def provenance(self) -> Provenance:
        """The images that its weights have seen, and whether these are all."""
        return provenance_of(self.folder / WEIGHTS_FILE, self.name)


def teacher_folder(workspace: Path, sha256: str) -> Path:
    """Return the folder in the workspace for a teacher with these weights."""
    return workspace / FOLDER / sha256


def check_teacher(config: RunConfig, workspace: Path) -> None:
    """Find a file of weights or published ones, so that unsuitable ones fail before data is read.

    A version of a model or a run is found later, once the servers answer.

    Raises:
        ConfigError: if there is no such teacher, or its classes are not known.
    """
    reference = _resolve_reference(config)
    if recipe.is_name(reference) or recipe.is_file(reference, SETTING):
        teacher = find_teacher(config, workspace)
        if config.data.task != "auto":
            check_task(teacher, config.data.task)


def find_teacher(config: RunConfig, workspace: Path) -> Teacher:
    """Return the teacher that a config names, after keeping it in the workspace.

    Args:
        config: the run's settings, with `training.teacher` set.
        workspace: the folder `.patchline`.

    Raises:
        ConfigError: if there is no such model, its classes are not known, or it is not the one that
            the run has recorded.
    """
    reference, sha256 = _resolve_reference(config), config.record.teacher_sha256
    if sha256 and (kept := _read_kept(workspace, sha256)):
        return kept
    trained = finding.find_trained(reference, workspace, SETTING)
    if trained is not None:
        teacher = _of_training(trained, workspace)
    else:
        download = config.model.download
        weights = finding.find_converted(reference, workspace, download=download, setting=SETTING)
        teacher = _of_weights(weights, workspace)
    if sha256 not in (None, teacher.sha256):
        raise ConfigError(
            f"{SETTING} {reference} has changed since the run recorded it: the SHA-256 of its "
            f"weights was {str(sha256)[:12]}, and is {teacher.sha256[:12]} now. Restore it, or "
            "remove record.teacher_sha256 from the config."
        )
    teacher.to_file(teacher.folder / _RECORD_FILE)
    return teacher


def _resolve_reference(config: RunConfig) -> str:
    """Return the reference; a folder that holds a model stands for its file of weights."""
    reference = str(config.training.teacher)
    file = Path(reference).expanduser() / WEIGHTS_FILE
    return str(file) if file.is_file() else reference


def _read_kept(workspace: Path, sha256: str) -> Teacher | None:
    folder = teacher_folder(workspace, sha256)
    kept = Teacher.from_file_or_none(folder / _RECORD_FILE)
    return kept and kept.model_copy(update={"folder": folder})


def _of_training(trained: finding.Trained, workspace: Path) -> Teacher:
    """Keep a model that Patchline has trained."""
    description = load_description(trained.folder)
    if not description.classes:
        raise ConfigError(
            f"{SETTING} {trained.name} is an encoder, which knows no classes. Fine-tune it with "
            f"--model.init {trained.name}, and name the version that this makes."
        )
    sha256 = _digest(trained.folder, description)
    folder = teacher_folder(workspace, sha256)
    with storage_errors(folder):
        make_folder(folder)
        for name in (WEIGHTS_FILE, DESCRIPTION_FILE):
            with replace_file(folder / name) as temporary:
                shutil.copyfile(trained.folder / name, temporary)
    run_id, score, test_images = _find_test(description.run_id, description.task)
    return Teacher(
        reference=trained.reference,
        kind=trained.kind,
        sha256=sha256,
        folder=folder,
        classes=description.classes,
        image=description.image,
        model=description.model.name,
        task=description.task,
        run_id=run_id,
        test_score=score,
        test_images=test_images,
    )


def _digest(folder: Path, description: ModelDescription) -> str:
    """Return what tells a trained model from others: its weights, and how they are calibrated.

    The calibration of one label for each image changes no targets; that of sets does.
    """
    sha256 = digest_of(folder / WEIGHTS_FILE).sha256
    if description.label_calibration is None:
        return sha256
    scaled = description.label_calibration.model_dump_json(include={"scales", "shifts"})
    return hashlib.sha256(f"{sha256} {scaled}".encode()).hexdigest()


def check_task(teacher: Teacher, task: Task) -> None:
    """Refuse a teacher that answers another question than the run asks.

    Args:
        teacher: the run's teacher.
        task: the task of the run's data.

    Raises:
        ConfigError: if it is of the other task.
    """
    if teacher.task == task:
        return
    gives = {SINGLE_LABEL: "one class for each image", MULTI_LABEL: "sets of labels"}
    has = {SINGLE_LABEL: "one label", MULTI_LABEL: "several labels"}
    raise ConfigError(
        f"{SETTING} {teacher.name} predicts {gives[teacher.task]}, but the images have "
        f"{has[task]}. Name a model that was trained on images with {has[task]}, set --data.task "
        f"{teacher.task} if the data can be read so, or leave out {SETTING}."
    )


def _of_weights(weights: InitialWeights, workspace: Path) -> Teacher:
    """Build the whole classifier of weights from elsewhere, and keep it."""
    if weights.classes is None:
        raise ConfigError(
            f"{SETTING} {weights.origin} ({weights.layout}) does not say which classes its outputs "
            f"are. Train a model that starts from it, with --model.init {weights.reference}, and "
            "name the version that this makes."
        )
    from patchline.pipeline.models.model_building import build_model
    from patchline.pipeline.models.model_files import save_model
    from patchline.pipeline.training.initial_weights.loading import load_into

    folder = teacher_folder(workspace, weights.sha256)
    source = weights_folder(workspace, weights.sha256)
    model, image = ModelChoice.model_validate(weights.settings), _image(weights)
    built = build_model(model, image, len(weights.classes))
    load_into(built, weights, source, weights.classes)
    description = ModelDescription(
        model=model, plugins=describe_plugins(model), classes=weights.classes, image=image
    )
    with storage_errors(folder):
        make_folder(folder)
        save_model(folder, built, description, read_stored_provenance(source))
    return Teacher(
        reference=weights.reference,
        kind=weights.kind,
        sha256=weights.sha256,
        folder=folder,
        classes=weights.classes,
        image=image,
        model=model.name,
    )


def _image(weights: InitialWeights) -> ImageSpec:
    side = weights.image_size
    return ImageSpec(
        channels=weights.channels,
        height=side,
        width=side,
        mean=weights.mean,
        std=weights.std,
        resize="crop",
    )


def _find_test(run_id: str, task: Task) -> tuple[str, float | None, str]:
    """Return a run, its test metric, and the version of its test images, as far as known."""
    if not run_id or not store_exists():
        return "", None, ""
    from mlflow.exceptions import MlflowException

    try:
        run = client().get_run(run_id)
    except (MlflowException, PipelineError):
        return "", None, ""
    return (
        run_id,
        run.data.metrics.get(f"test/{_METRICS[task]}"),
        run.data.tags.get(TEST_IMAGES_TAG, ""),
    )


def teacher_for(config: RunConfig, data: IngestedData, workspace: Path) -> Teacher:
    """Return the teacher that a config names, which knows all classes of the data.

    Raises:
        ConfigError: if there is no such model, it is of another task, or does not know a class.
    """
    teacher = find_teacher(config, workspace)
    check_task(teacher, data.task)
    class_columns(teacher.name, teacher.classes, data.classes, data.task)
    rows = manifests.usable(manifests.load(data.manifest_file))
    own = manifests.contents_fingerprint(rows[rows["split"] == "test"])
    known = bool(teacher.test_images)
    return teacher.model_copy(
        update={"same_test_images": teacher.test_images == own if known else None}
    )


def find_seen_before(
    teacher: Teacher, start: StartingPoint | None, data: IngestedData, workspace: Path
) -> SeenBefore:
    """Return what the teacher, and the initial weights if there are some, have seen of the data."""
    provenance, weights = teacher.provenance, "the teacher"
    if start is not None and start.weights is not None:
        initial = read_stored_provenance(weights_folder(workspace, start.weights.sha256))
        provenance = together([initial, provenance])
        weights = "the initial weights or the teacher"
    return count_seen_images(data.manifest_file, provenance, weights)


def with_teacher(config: RunConfig, teacher: Teacher) -> RunConfig:
    """Return the config with the very teacher that was found, so that it can be repeated."""
    return with_changes(
        config,
        training={"teacher": teacher.reference},
        record={"teacher_sha256": teacher.sha256},
    )

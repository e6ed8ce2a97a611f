"""Find the teacher of a run, and keep it in the workspace: a whole classifier with named classes.

It lies in a folder named after the digest of its weights, as every model of Patchline does:
`model.safetensors` and `model.json`, whatever it was found as. So resuming and repeating a run
need nothing else.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from patchline.pipeline.config import ModelChoice, RunConfig
from patchline.pipeline.errors import ConfigError, PipelineError
from patchline.pipeline.files.atomic_files import replacing, storage_errors, write_text
from patchline.pipeline.files.file_digest import digest_of
from patchline.pipeline.files.workspace_folder import make_folder
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.initial_weights import finding, recipe
from patchline.pipeline.initial_weights.record import (
    InitialWeights,
    WeightsKind,
    stored_provenance,
    weights_folder,
)
from patchline.pipeline.models.model_description import (
    DESCRIPTION_FILE,
    WEIGHTS_FILE,
    ModelDescription,
    describe_plugins,
    load_description,
)
from patchline.pipeline.provenance.provenance import Provenance
from patchline.pipeline.provenance.weights_record import provenance_of
from patchline.pipeline.registry.registered_models import TEST_IMAGES_TAG
from patchline.pipeline.tracking.tracking_store import client, store_exists
from patchline.plugin_api import ImageSpec

SETTING = "training.teacher"
FOLDER = "teachers"
"""In the workspace."""
_RECORD_FILE = "teacher.json"
_ACCURACY = "test/accuracy"


class Teacher(FrozenModel):
    """A model that predicts the images of a run."""

    reference: str
    """An absolute path, published weights, a model version such as `flowers/3`, or a run's id."""
    kind: WeightsKind
    sha256: str
    """Of the file of its weights as it was found."""
    folder: Path
    """In the workspace; holds the model."""
    classes: tuple[str, ...]
    """In the order of its outputs."""
    image: ImageSpec
    """How it sees an image."""
    model: str
    """Its plugin."""
    run_id: str = ""
    """The MLflow run that trained it, if one of this store did."""
    test_accuracy: float | None = None
    """As that run reported; None if it is not known."""
    test_images: str = ""
    """The version of the images that this accuracy belongs to; empty if it is not known."""
    same_test_images: bool | None = None
    """Whether these are the test images of the run that it teaches; None if that is not known."""

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        if self.kind == "run":
            return f"run {self.reference[:8]}"
        return recipe.display_name(self.reference) if self.kind == "file" else self.reference

    def described(self) -> str:
        """Return what it is, and how good, in a few words."""
        size = f"{self.image.width}x{self.image.height} pixels"
        return f"{self.name} ({self.model}, {size}; {self.tested()})"

    def tested(self) -> str:
        """Return its test accuracy, as far as it is known, and on which images."""
        if self.test_accuracy is None:
            return "its test accuracy is not known"
        on = {
            True: "the same test images",
            False: "other test images than those of this run",
            None: "its own test images",
        }[self.same_test_images]
        return f"test accuracy {self.test_accuracy:.1%} on {on}"

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
    reference = _given(config)
    if recipe.is_name(reference) or recipe.is_file(reference, SETTING):
        find_teacher(config, workspace)


def find_teacher(config: RunConfig, workspace: Path) -> Teacher:
    """Return the teacher that a config names, after keeping it in the workspace.

    Args:
        config: with `training.teacher`.
        workspace: the folder `.patchline`.

    Raises:
        ConfigError: if there is no such model, its classes are not known, or it is not the one that
            the run has recorded.
    """
    reference, sha256 = _given(config), config.training.teacher_sha256
    if sha256 and (kept := _kept(workspace, sha256)):
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
            "remove training.teacher_sha256."
        )
    write_text(teacher.folder / _RECORD_FILE, teacher.model_dump_json(indent=2) + "\n")
    return teacher


def _given(config: RunConfig) -> str:
    """Return the reference; a folder that holds a model stands for its file of weights."""
    reference = str(config.training.teacher)
    file = Path(reference).expanduser() / WEIGHTS_FILE
    return str(file) if file.is_file() else reference


def _kept(workspace: Path, sha256: str) -> Teacher | None:
    folder = teacher_folder(workspace, sha256)
    try:
        text = (folder / _RECORD_FILE).read_text(encoding="utf-8")
        return Teacher.model_validate_json(text).model_copy(update={"folder": folder})
    except (OSError, ValueError):
        return None  # it is searched for again


def _of_training(trained: finding.Trained, workspace: Path) -> Teacher:
    """Keep a model that Patchline has trained."""
    description = load_description(trained.folder)
    if not description.classes:
        raise ConfigError(
            f"{SETTING} {trained.name} is an encoder, which knows no classes. Fine-tune it with "
            f"--model.init {trained.name}, and name the version that this makes."
        )
    if description.is_multi_label:
        raise ConfigError(
            f"{SETTING} {trained.name} predicts sets of labels, and a teacher has to predict one "
            f"class for each image. Leave out {SETTING}, or name a model that was trained on "
            "images with one label."
        )
    sha256 = digest_of(trained.folder / WEIGHTS_FILE).sha256
    folder = teacher_folder(workspace, sha256)
    with storage_errors(folder):
        make_folder(folder)
        for name in (WEIGHTS_FILE, DESCRIPTION_FILE):
            with replacing(folder / name) as temporary:
                shutil.copyfile(trained.folder / name, temporary)
    run_id, accuracy, test_images = _tested(description.run_id)
    return Teacher(
        reference=trained.reference,
        kind=trained.kind,
        sha256=sha256,
        folder=folder,
        classes=description.classes,
        image=description.image,
        model=description.model.name,
        run_id=run_id,
        test_accuracy=accuracy,
        test_images=test_images,
    )


def _of_weights(weights: InitialWeights, workspace: Path) -> Teacher:
    """Build the whole classifier of weights from elsewhere, and keep it."""
    if weights.classes is None:
        raise ConfigError(
            f"{SETTING} {weights.origin} ({weights.layout}) does not say which classes its outputs "
            f"are. Train a model that starts from it, with --model.init {weights.reference}, and "
            "name the version that this makes."
        )
    from patchline.pipeline.initial_weights.loading import load_into
    from patchline.pipeline.models.model_building import build_model
    from patchline.pipeline.models.model_files import save_model

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
        save_model(folder, built, description, stored_provenance(source))
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


def _tested(run_id: str) -> tuple[str, float | None, str]:
    """Return a run, its test accuracy, and the version of its test images, as far as known."""
    from mlflow.exceptions import MlflowException

    if not run_id or not store_exists():
        return "", None, ""
    try:
        run = client().get_run(run_id)
    except (MlflowException, PipelineError):
        return "", None, ""
    return run_id, run.data.metrics.get(_ACCURACY), run.data.tags.get(TEST_IMAGES_TAG, "")

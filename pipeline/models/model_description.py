"""The description of a saved model, `model.json`: everything except its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task
from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.evaluation.metrics.label_calibration import (
    LabelCalibration,
    LabelThresholds,
)
from patchline.pipeline.evaluation.metrics.temperature import UNRECORDED, TemperatureFit
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_settings import name_patch_embedding
from patchline.plugin_api import NO_PATCH_EMBEDDING, ImageSpec

VALIDATION = "the validation images"
"""The basis of rules whose images the final model predicts and was not trained on."""


class SetThreshold(FrozenModel):
    """The threshold of prediction sets for one coverage."""

    coverage: float
    """Nominal: the share of new images like the held-out ones whose set holds the true class."""
    least_probability: float | None
    """A set holds every class with at least this probability; None if it is not known."""
    by_class: tuple[float, ...] = ()
    """Such a threshold for each class, if all have enough images; used instead, so that the
    coverage holds for each class."""
    unknown: str = ""
    """Why it is not known."""


class AnswerRules(FrozenModel):
    """Thresholds of prediction sets, and limits beyond which an image gets a warning.

    They come from held-out images by split conformal prediction
    (`patchline.pipeline.evaluation.metrics.conformal`). A limit of None gives no warning: the image
    may or may not be of that kind.
    """

    coverage: float
    """The coverage of the sets, unless another one is asked for."""
    thresholds: tuple[SetThreshold, ...]
    """The thresholds, in the order of rising coverage."""
    images: int
    """Number of held-out images that the thresholds come from."""
    groups: int = 0
    """Number of their groups, which have equal weight; 0 if the images have no groups."""
    basis: str
    """What these images are, in words."""
    false_alarms: float
    """Probability of the warning `far` for a new image like the held-out ones."""
    dark: float | None = None
    """99th percentile of the grey values (0 to 255) below which an image is dark."""
    blurred: float | None = None
    """Sharpness below which an image is blurred."""
    least_side: float | None = None
    """Pixels on the shorter side below which an image is too small."""
    far: float | None = None
    """Distance to the reference features beyond which an image is unlike those seen."""
    far_split: Literal["validation", "test"] = "validation"
    """Split of the run that the reference and the distance come from: the images that the final
    model was not trained on."""
    unknown: dict[str, str] = Field(default_factory=dict)
    """Why a limit is not known, by the kind of the warning."""

    @property
    def on_coverage(self) -> str:
        """What the coverage of sets means, in a sentence."""
        if self.basis == VALIDATION:
            return (
                "coverage is an average over new images like the validation images, not a "
                "probability for one image"
            )
        return (
            "coverage is measured, but not guaranteed: the thresholds come from predictions of "
            "other models than this one"
        )


DESCRIPTION_FILE, WEIGHTS_FILE = "model.json", "model.safetensors"


FORMAT_VERSION = 1
Calibration = TemperatureFit | LabelCalibration
"""What maps a model's logits to probabilities, by a softmax or by sigmoids."""


def _is_of_one_label(value: object) -> bool:
    """Whether a field says nothing about a model with one label for each image."""
    return value is None or value == SINGLE_LABEL


class PluginRecord(FrozenModel):
    """Which plugin, of which distribution and version, made a model."""

    kind: str
    name: str
    distribution: str
    version: str


class ModelDescription(FrozenModel):
    """Everything about a model except its weights."""

    format_version: int = FORMAT_VERSION
    model: ModelChoice
    plugins: tuple[PluginRecord, ...]
    classes: tuple[str, ...]
    """Class names in the order of the model's outputs."""
    image: ImageSpec
    members: int = 1
    """Number of models whose probabilities an `Ensemble` averages."""
    temperature: float = 1.0
    """Divides the logits before the softmax, so that probabilities are calibrated."""
    task: Task = Field(default=SINGLE_LABEL, exclude_if=_is_of_one_label)
    """Whether an image has one class or a set of labels."""
    label_calibration: LabelCalibration | None = Field(default=None, exclude_if=_is_of_one_label)
    """The calibration of a multi-label model, instead of a temperature; None if it is not
    calibrated."""
    thresholds: LabelThresholds | None = Field(default=None, exclude_if=_is_of_one_label)
    """The least probability at which an image has each label, in a package of a multi-label
    model."""
    calibration: TemperatureFit | None = None
    """Whether validation images determine the temperature; None if the model is not calibrated."""
    answers: AnswerRules | None = None
    """When an answer is a set of classes or gets a warning; None of an encoder."""
    data_fingerprint: str = ""
    """Version of the data that the model was trained on."""
    run_id: str = ""
    """The MLflow run that trained the model."""
    head_only: bool = False
    """Whether nothing but the head was trained, on the frozen features of other weights."""

    @property
    def is_multi_label(self) -> bool:
        """Whether an image has a set of labels."""
        return self.task == MULTI_LABEL

    @property
    def logit_calibration(self) -> Calibration:
        """What maps the model's logits to the probabilities that its package answers with."""
        if self.is_multi_label:
            return self.label_calibration or LabelCalibration.none(len(self.classes))
        unrecorded = UNRECORDED.model_copy(update={"temperature": self.temperature})
        return self.calibration or unrecorded


def describe_plugins(choice: ModelChoice) -> tuple[PluginRecord, ...]:
    """Return the records of the plugins that a model is made of."""
    chosen: list[tuple[plugin_loader.Kind, str]] = [("model", choice.name)]
    embedding = name_patch_embedding(choice).name
    if embedding != NO_PATCH_EMBEDDING:
        chosen.append(("patch_embedding", embedding))
    entries = [plugin_loader.find(kind, name) for kind, name in chosen]
    return tuple(
        PluginRecord(kind=e.kind, name=e.name, distribution=e.distribution, version=e.version)
        for e in entries
    )


def load_description(folder: Path) -> ModelDescription:
    """Read the description of a saved model.

    Raises:
        ModelReferenceError: if there is none, or it was written by a newer Patchline.
    """
    file = folder / DESCRIPTION_FILE
    try:
        return ModelDescription.from_file(file)
    except FileNotFoundError as error:
        raise ModelReferenceError(
            f"{folder} holds no {DESCRIPTION_FILE}. Name a saved model."
        ) from error
    except ValidationError as error:
        raise ModelReferenceError(
            f"{file} does not describe a model of format {FORMAT_VERSION}. Update Patchline, or "
            "train the model again."
        ) from error

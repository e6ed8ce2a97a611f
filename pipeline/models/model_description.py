"""The description of a saved model, `model.json`: everything except its weights."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task
from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.evaluation.metrics.label_calibration import LabelCalibration
from patchline.pipeline.evaluation.metrics.label_thresholds import LabelThresholds
from patchline.pipeline.evaluation.metrics.temperature import UNRECORDED, TemperatureFit
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.answer_rules import AnswerRules
from patchline.pipeline.models.model_file_names import DESCRIPTION_FILE, WEIGHTS_FILE
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_settings import named_patch_embedding
from patchline.plugin_api import NO_PATCH_EMBEDDING, ImageSpec

__all__ = [
    "DESCRIPTION_FILE",
    "WEIGHTS_FILE",
    "ModelDescription",
    "PluginRecord",
    "describe_plugins",
    "load_description",
]
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
    """Of a multi-label model, instead of a temperature; None if it is not calibrated."""
    thresholds: LabelThresholds | None = Field(default=None, exclude_if=_is_of_one_label)
    """Of a packaged multi-label model: the least probability of each label that an image has."""
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
    embedding = named_patch_embedding(choice).name
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
        return ModelDescription.model_validate_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelReferenceError(
            f"{folder} holds no {DESCRIPTION_FILE}. Name a saved model."
        ) from error
    except ValidationError as error:
        raise ModelReferenceError(
            f"{file} does not describe a model of format {FORMAT_VERSION}. Update Patchline, or "
            "train the model again."
        ) from error

"""The description of a saved model, `model.json`: everything except its weights."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.metrics.temperature import TemperatureFit
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
    """Number of models whose probabilities are averaged (`patchline.pipeline.models.ensemble`)."""
    temperature: float = 1.0
    """Divides the logits before the softmax, so that probabilities are calibrated."""
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

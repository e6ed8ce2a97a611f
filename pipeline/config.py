"""The configuration of a run: its YAML file, flags, Prefect parameter and MLflow params."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from patchline.pipeline.data.config import DataConfig
from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.former_settings import with_todays_names
from patchline.pipeline.frozen_model import DocumentedModel
from patchline.pipeline.presets import DEFAULT, PresetChoice, preset_choice
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.training.config import OptimizerConfig, TrainingConfig
from patchline.pipeline.training.record import RunRecord
from patchline.plugin_api import NO_PATCH_EMBEDDING

AUTO = "auto"
NO_WEIGHTS = "none"
"""As `model.init`: random weights, also where a plan would choose others."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


NAME_RULE = (
    "must be 1 to 100 letters, digits, dots, dashes or underscores, the first a letter or digit"
)


def is_name(text: str) -> bool:
    """Return whether a text can be the name of an experiment, a model, a schedule or a watch."""
    return _NAME.fullmatch(text) is not None


def _check_name(name: str) -> str:
    if not is_name(name):
        raise ValueError(NAME_RULE)
    return name


def _unless_none(init: Any) -> Any:
    return None if init == NO_WEIGHTS else init


class PluginChoice(DocumentedModel):
    """A plugin's name, with its settings next to it.

    The settings are a free object here, so that a form can be drawn without importing a plugin.
    `patchline.pipeline.plugin_system.plugin_settings.check_plugins` checks them with the plugin's
    own config class.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    """Name of the plugin; `patchline plugins list` shows what is installed."""

    @classmethod
    def describe_name(cls, kind: str) -> str:
        """Return the help text of the name, for a plugin of this kind."""
        description = cls.model_fields["name"].description or ""
        return description.replace("the plugin", f"the {kind} plugin")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings next to the name."""
        return dict(self.__pydantic_extra__ or {})

    def with_settings(self, settings: dict[str, Any]) -> Self:
        """Return the same choice with other settings."""
        own = {key: getattr(self, key) for key in type(self).model_fields}
        return type(self).model_validate({**settings, **own})


class PatchEmbeddingChoice(PluginChoice):
    """The patch embedding plugin."""

    name: str = AUTO
    """Name of the patch embedding plugin; auto selects the model's default."""


class ModelChoice(PluginChoice):
    """The model plugin and its patch embedding."""

    name: str = "vit"
    """Name of the model plugin; `patchline plugins list` shows what is installed."""

    patch_embedding: PatchEmbeddingChoice = PatchEmbeddingChoice()
    """How the image becomes a sequence of tokens."""

    init: Annotated[Annotated[str, Field(min_length=1)] | None, BeforeValidator(_unless_none)] = (
        None
    )
    """Initial weights: a file (.safetensors, .pth, .npz) in the layout of torchvision, timm,
    transformers, CLIP, DINO or the original ViT, published ones such as timm:NAME, torchvision:NAME
    or hf:OWNER/NAME, a model version such as flowers@champion, a run, or champion for the run's own
    model; null for random weights, unless a preset's plan chooses others that are on this machine;
    none for random weights in any case."""

    download: bool = False
    """Download weights that are not here yet: published ones that are not in their library's cache.
    """

    def architecture(self) -> Self:
        """Return the same model without its initial weights."""
        return self.model_copy(update={"init": None, "download": False})

    @property
    def names(self) -> list[str]:
        """The model's name, and the patch embedding's if the model has one."""
        embedding = self.patch_embedding.name
        return [self.name] if embedding == NO_PATCH_EMBEDDING else [self.name, embedding]


def _without_record(schema: dict[str, Any]) -> None:
    """Show no form what runs write; they submit it all the same."""
    del schema["properties"]["record"]
    del schema["additionalProperties"]


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested settings by keys such as `training.epochs`."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        inner = isinstance(value, Mapping) and value
        values |= flatten_settings(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return values


def pick_settings(
    settings: Mapping[str, Any], picks: Callable[[str, Any], bool], prefix: str = ""
) -> dict[str, Any]:
    """Return some of nested settings, without sections that are empty then.

    Args:
        settings: the settings.
        picks: returns whether to pick a setting, given its key, such as `training.epochs`, and its
            value.
        prefix: stands in front of the keys.
    """
    picked: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if inner := pick_settings(value, picks, f"{name}."):
                picked[key] = inner
        elif picks(name, value):
            picked[key] = value
    return picked


class RunConfig(DocumentedModel):
    """All settings of a run."""

    model_config = ConfigDict(json_schema_extra=_without_record)

    name: Annotated[str, AfterValidator(_check_name)] | None = None
    """Name of experiment and registered model; by default the data's own name."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of everything random in training: the initial weights, the order of the images and their
    augmentation."""

    data: DataConfig = DataConfig()
    """The images, their preparation and their splits."""

    augmentation: PluginChoice = PluginChoice(name="light")
    """Random changes to the training images."""

    model: ModelChoice = ModelChoice()
    """The model and its patch embedding."""

    objective: PluginChoice = PluginChoice(name="supervised")
    """What training minimises: classification of labelled images, or pre-training without labels.
    """

    optimizer: OptimizerConfig = OptimizerConfig()
    """The optimizer and its schedule."""

    training: TrainingConfig = TrainingConfig()
    """Length, batch size and precision of training."""

    evaluation: EvaluationConfig = EvaluationConfig()
    """Contents of the report."""

    promotion: PromotionConfig = PromotionConfig()
    """Conditions for a version to become champion."""

    launcher: PluginChoice = PluginChoice(name="local")
    """Where the stages compute: local for this machine, ray for a cluster. It changes no result."""

    record: RunRecord = RunRecord()
    """What the run decided or met, to reproduce it; nobody sets it."""

    preset: Annotated[PresetChoice | None, BeforeValidator(preset_choice)] = PresetChoice(
        name=DEFAULT
    )
    """Preset that plans all settings not given, from the data and the machine: quick, balanced,
    best, or none for the defaults; null, the same as none, once the plan is made."""

    @model_validator(mode="before")
    @classmethod
    def _read_former_settings(cls, values: Any) -> Any:
        return with_todays_names(values)[0] if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _extension_is_one_fit(self) -> Self:
        training = self.training
        whole = training.trainable in (None, "all")
        several = {
            "folds": training.folds,
            "final_model": training.final_model if training.final_model != "best" else None,
            "time_limit": training.time_limit,
            "trainable": None if whole else training.trainable,
        }
        for name, value in several.items():
            if self.record.extends is not None and value:
                raise ValueError(
                    f"training.{name} is {value}, but --extend trains all weights of a single fit "
                    f"to more epochs. Leave out training.{name}"
                )
        return self

    @model_validator(mode="after")
    def _a_trained_head_has_initial_weights(self) -> Self:
        trainable = self.training.trainable
        if trainable not in (None, "all") and self.model.init is None:
            raise ValueError(
                f"training.trainable is {trainable}, but the features would be those of random "
                "weights. Set model.init to the weights to start from, or training.trainable to all"
            )
        return self

    @model_validator(mode="after")
    def _fractions_leave_training_images(self) -> Self:
        total_share = self.data.validation_fraction + self.data.test_fraction
        if total_share > 0.9:  # noqa: PLR2004 - stated in the message
            raise ValueError(
                f"data.validation_fraction and data.test_fraction add up to {total_share:.2f}, but "
                "at most 0.9 is allowed. Make one of them smaller"
            )
        return self

    def flat(self) -> dict[str, str]:
        """Return dotted keys and their values as text, as MLflow params hold them.

        A preset and `record.set_by_user` are left out: a resolved config has all settings instead.
        """
        dump = self.model_dump(mode="json", exclude={"preset": True, "record": {"set_by_user"}})
        return {
            key: "" if value is None else str(value)
            for key, value in flatten_settings(dump).items()
        }

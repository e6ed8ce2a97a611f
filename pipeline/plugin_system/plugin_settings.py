"""Validate the settings of the chosen plugins with the plugins' config classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from patchline.pipeline import config_errors
from patchline.pipeline.config import (
    AUTO,
    ModelChoice,
    PatchEmbeddingChoice,
    PluginChoice,
    RunConfig,
)
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system.plugin_loader import (
    Kind,
    config_class,
    load_launcher,
    load_model,
    load_objective,
    plugin_errors,
)
from patchline.plugin_api import (
    NO_PATCH_EMBEDDING,
    DataTraits,
    Launcher,
    LauncherContext,
    PluginConfig,
)

Choice = TypeVar("Choice", bound=PluginChoice)
_Change = Callable[[PluginConfig], PluginConfig]


def check_plugins(config: RunConfig) -> RunConfig:
    """Check the plugins' settings and fill in their defaults.

    Raises:
        ConfigError: for the first setting that is unknown or has an invalid value.
        PluginError: for a plugin that is unknown or broken.
    """
    _check_objective(config)
    return _with_settings(config, lambda settings: settings)


def _check_objective(config: RunConfig) -> None:
    """Refuse settings that need classes if the objective uses no labels.

    Raises:
        ConfigError: for the first one.
    """
    name, training = config.objective.name, config.training
    if load_objective(name).uses_labels:
        return
    needs_classes = {
        "training.folds": training.folds,
        "training.final_model": training.final_model != "best" and training.final_model,
        "training.mixup": training.mixup,
        "training.cutmix": training.cutmix,
        "training.class_balance": training.class_balance != "none" and training.class_balance,
        "training.trainable": training.trainable not in (None, "all") and training.trainable,
    }
    for key, value in needs_classes.items():
        if value:
            raise ConfigError(
                f"{key} is {value}, but objective.name {name} pre-trains an encoder without "
                f"labels. Leave out {key}, or set objective.name to supervised."
            )


def resolve_settings(config: RunConfig, traits: DataTraits) -> RunConfig:
    """Fill in the plugins' settings that depend on the data.

    Raises:
        ConfigError: if a setting does not fit the images.
    """
    return _with_settings(config, lambda settings: settings.resolved_for(traits))


def name_patch_embedding(model: ModelChoice) -> PatchEmbeddingChoice:
    """Return the model's patch embedding with its name instead of `auto`.

    Raises:
        ConfigError: if one is chosen, or settings for one, and the model takes none.
    """
    chosen = model.patch_embedding
    name = patch_embedding_name(model.name, chosen.name)
    if name == NO_PATCH_EMBEDDING and chosen.settings:
        raise ConfigError(
            f"model.patch_embedding.{next(iter(chosen.settings))} is set, but the model "
            f"{model.name} takes no patch embedding. Omit it."
        )
    return chosen if name == chosen.name else chosen.model_copy(update={"name": name})


def list_chosen_plugins(config: RunConfig) -> dict[Kind, str]:
    """Return the names of the plugins that decide the results of a run, by kind.

    There is no patch embedding if the model takes none.
    """
    chosen: dict[Kind, str] = {
        "data_source": config.data.source,
        "augmentation": config.augmentation.name,
        "objective": config.objective.name,
        "model": config.model.name,
    }
    embedding = name_patch_embedding(config.model).name
    return chosen if embedding == NO_PATCH_EMBEDDING else {**chosen, "patch_embedding": embedding}


def settings_of(kind: Kind, choice: PluginChoice, prefix: str) -> PluginConfig:
    """Return a plugin's settings as an instance of its config class."""
    return _parse(kind, choice.name, choice.settings, prefix)


def patch_embedding_name(model: str, chosen: str) -> str:
    """Return the name of a model's patch embedding, `none` if it takes none.

    Args:
        model: name of the model plugin.
        chosen: the name in the settings; `auto` means the model's default.

    Raises:
        ConfigError: if one is chosen for a model that takes none.
        PluginError: if the model plugin is unknown or broken.
    """
    own = load_model(model).patch_embedding
    if chosen in (AUTO, own):
        return own
    if own == NO_PATCH_EMBEDDING:
        raise ConfigError(
            f"model.patch_embedding.name is {chosen}, but the model {model} takes no patch "
            f"embedding. Set it to {NO_PATCH_EMBEDDING}, or omit it."
        )
    if chosen == NO_PATCH_EMBEDDING:
        raise ConfigError(
            f"model.patch_embedding.name is {chosen}, but the model {model} needs a patch "
            f"embedding. Set it to {own}, or omit it."
        )
    return chosen


def build_launcher(choice: PluginChoice, workspace: Path) -> Launcher:
    """Return the launcher of a config.

    Args:
        choice: the launcher's name and settings.
        workspace: the folder below which workers read and write.

    Raises:
        ConfigError: for a setting that is unknown or has an invalid value.
        PluginError: for a plugin that is unknown or broken.
    """
    plugin = load_launcher(choice.name)
    settings = settings_of("launcher", choice, "launcher")
    with plugin_errors("launcher", choice.name, "failed to build"):
        return plugin.build(settings, LauncherContext(workspace.resolve()))


def _parse(kind: Kind, name: str, settings: dict[str, object], prefix: str) -> PluginConfig:
    plugin_class = config_class(kind, name)
    try:
        return plugin_class.model_validate(settings)
    except ValidationError as error:
        raise config_errors.sentence(error, plugin_class, prefix) from error


def _with_settings(config: RunConfig, change: _Change) -> RunConfig:
    def changed(choice: Choice, kind: Kind, prefix: str) -> Choice:
        parsed = settings_of(kind, choice, prefix)
        with plugin_errors(kind, choice.name, "failed to resolve its settings"):
            settings = change(parsed).model_dump(mode="json")
        return choice.with_settings(settings)

    model = changed(config.model, "model", "model")
    named = name_patch_embedding(model)
    embedding = (
        named
        if named.name == NO_PATCH_EMBEDDING
        else changed(named, "patch_embedding", "model.patch_embedding")
    )
    parsed = _parse("data_source", config.data.source, config.data.options, "data.options")
    with plugin_errors("data_source", config.data.source, "failed to resolve its settings"):
        options = change(parsed).model_dump(mode="json")
    return config.model_copy(
        update={
            "model": model.model_copy(update={"patch_embedding": embedding}),
            "augmentation": changed(config.augmentation, "augmentation", "augmentation"),
            "objective": changed(config.objective, "objective", "objective"),
            "launcher": changed(config.launcher, "launcher", "launcher"),
            "data": config.data.model_copy(update={"options": options}),
        }
    )

"""Hold the settings of the chosen plugins against the plugins' own config classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError

from pipeline import config_errors
from pipeline.config import PluginChoice, RunConfig
from pipeline.plugin_api import DataTraits, PluginConfig
from pipeline.plugin_loader import Kind, config_class

Choice = TypeVar("Choice", bound=PluginChoice)
_Change = Callable[[PluginConfig], PluginConfig]


def checked_plugins(config: RunConfig) -> RunConfig:
    """Check the plugins' settings and fill in their defaults.

    Raises:
        ConfigError: for the first setting that is unknown or has a bad value.
        PluginError: for a plugin that is unknown or broken.
    """
    return _with_settings(config, lambda settings: settings)


def resolve_settings(config: RunConfig, traits: DataTraits) -> RunConfig:
    """Fill in the plugins' settings that depend on the data.

    Raises:
        ConfigError: if a setting does not fit the images.
    """
    return _with_settings(config, lambda settings: settings.resolved_for(traits))


def settings_of(kind: Kind, choice: PluginChoice, prefix: str) -> PluginConfig:
    """Return the settings beside a plugin's name as the plugin's own config class."""
    return _parsed(kind, choice.name, choice.settings, prefix)


def _parsed(kind: Kind, name: str, settings: dict[str, object], prefix: str) -> PluginConfig:
    plugin_class = config_class(kind, name)
    try:
        return plugin_class.model_validate(settings)
    except ValidationError as error:
        raise config_errors.sentence(error, plugin_class, prefix) from error


def _with_settings(config: RunConfig, change: _Change) -> RunConfig:
    def changed(choice: Choice, kind: Kind, prefix: str) -> Choice:
        settings = change(settings_of(kind, choice, prefix))
        return choice.with_settings(settings.model_dump(mode="json"))

    model = changed(config.model, "model", "model")
    embedding = changed(model.patch_embedding, "patch_embedding", "model.patch_embedding")
    options = change(
        _parsed("data_source", config.data.source, config.data.options, "data.options")
    )
    return config.model_copy(
        update={
            "model": model.model_copy(update={"patch_embedding": embedding}),
            "augmentation": changed(config.augmentation, "augmentation", "augmentation"),
            "data": config.data.model_copy(update={"options": options.model_dump(mode="json")}),
        }
    )

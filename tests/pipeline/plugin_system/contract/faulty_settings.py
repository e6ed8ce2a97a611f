"""Plugins with faulty settings, each with its check and a part of what the check says."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer

from patchline.plugin_api import AugmentationPlugin, PluginConfig


class TakesEverything(PluginConfig):
    model_config = ConfigDict(extra="ignore")


class Unexplained(PluginConfig):
    strength: float = 0.5


class Needy(PluginConfig):
    strength: float
    """How much changes."""


class Renamed(PluginConfig):
    strength: Annotated[float, Field(validation_alias="power")] = 0.5
    """How much changes."""


class Growing(PluginConfig):
    strength: Annotated[float, BeforeValidator(lambda value: 2 * value)] = 0.5
    """How much changes."""


class Rounded(PluginConfig):
    strength: Annotated[float, PlainSerializer(lambda value: round(value, 1))] = 0.25
    """How much changes."""


def plugin_with(config_class: Any = PluginConfig, summary: Any = "For the tests") -> Any:
    """Return a plugin that is never built."""
    return AugmentationPlugin(summary, "", config_class)


_SAYS, _JSON = "says_what_it_is", "settings_survive_json"
FAULTS = {
    "no summary": (plugin_with(summary=" "), _SAYS, "Its summary is empty."),
    "two lines": (plugin_with(summary="One.\nTwo."), _SAYS, "has several lines."),
    "a number": (plugin_with(summary=3), _SAYS, "It raised AttributeError: 'int' object"),
    "no config class": (plugin_with(dict), "rejects_unknown_settings", "does not derive from"),
    "takes everything": (
        plugin_with(TakesEverything), "rejects_unknown_settings", "accepts unknown settings."
    ),
    "no text": (plugin_with(Unexplained), "explains_every_setting", "strength has no help text."),
    "no default": (plugin_with(Needy), "explains_every_setting", "strength has no default."),
    "another name in a file": (plugin_with(Renamed), _JSON, "cannot be read from its own JSON"),
    "grows when read": (plugin_with(Growing), _JSON, "is read from its own JSON as Growing"),
    "rounds when written": (plugin_with(Rounded), _JSON, "own JSON as Rounded(strength=0.2)."),
}  # fmt: skip

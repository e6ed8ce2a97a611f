"""A plugin named on the command line as `[KIND] NAME`, with its settings as flags.

The flags are the same as in `patchline run`: `--model.size b`, `--model.patch-embedding.name cct`,
`--data.image-size 64`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter
from pydantic import BaseModel, create_model

from patchline.flows.commands.switches import (
    Answer,
    flattened,
    given_flags,
    without_needless_negatives,
)
from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig, dotted
from patchline.pipeline.errors import ConfigError, PluginError
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.composed_config import ComposedModel, composed_config
from patchline.pipeline.plugin_system.plugin_loader import KINDS, Kind, PluginEntry, installed

_NAME_FLAGS: dict[Kind, tuple[str, ...]] = {
    "model": ("model", "name"),
    "patch_embedding": ("model", "patch_embedding", "name"),
    "data_source": ("data", "source"),
    "augmentation": ("augmentation", "name"),
    "objective": ("objective", "name"),
    "launcher": ("launcher", "name"),
}
"""What of a run's settings names a plugin; a store is named by the scheme of an address."""
_HELP = ("--help", "-h")
_WITHOUT_VALUE = ("--json", *_HELP)


@dataclass(frozen=True)
class NamedPlugin:
    """An installed plugin, and the class of the settings that flags may set."""

    entry: PluginEntry
    settings_class: type[BaseModel]

    def given(self, settings: BaseModel | None) -> dict[str, Any]:
        """Return the settings from the flags, including the plugin's name.

        Raises:
            ConfigError: if a flag names another plugin of the same kind.
        """
        flags = given_flags(settings)
        if self.entry.kind not in _NAME_FLAGS:
            return flags
        path = _NAME_FLAGS[self.entry.kind]
        section = flags
        for key in path[:-1]:
            section = section.setdefault(key, {})
        other = section.setdefault(path[-1], self.entry.name)
        if other != self.entry.name:
            raise ConfigError(
                f"{'.'.join(path)} is {other}, but the command names {self.entry.name}. Omit one "
                "of them."
            )
        return flags

    def own_settings(self, settings: BaseModel | None) -> dict[str, Any]:
        """Return the plugin's own settings from the flags."""
        flags = self.given(settings)
        if self.entry.kind == "data_source":
            options: dict[str, Any] = flags["data"].get("options", {})
            return options
        section = flags
        for key in _NAME_FLAGS.get(self.entry.kind, ())[:-1]:
            section = section[key]
        return {k: v for k, v in section.items() if k not in ("name", "patch_embedding")}

    def only_own_settings(self, settings: BaseModel | None) -> dict[str, Any]:
        """Return the plugin's own settings from the flags, and refuse others.

        Raises:
            ConfigError: if a flag sets anything else.
        """
        own = self.own_settings(settings)
        if self.entry.kind not in _NAME_FLAGS:
            return own
        path = _NAME_FLAGS[self.entry.kind][:-1]
        prefix = "data.options" if self.entry.kind == "data_source" else ".".join(path)
        allowed = {f"{prefix}.{key}" for key in own} | {".".join(_NAME_FLAGS[self.entry.kind])}
        for key in dotted(self.given(settings)):
            if not any(key == name or key.startswith(f"{name}.") for name in allowed):
                raise ConfigError(
                    f"{key} is not a setting of {self.entry.name}; the checks use only its own "
                    "settings. Omit it."
                )
        return own

    def config(self, settings: BaseModel | None) -> RunConfig:
        """Return the validated config with the plugin and the flags."""
        return config_files.validated(self.given(settings))


def words_of(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that are neither flags nor values of flags."""
    words, rest = [], iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            words.append(argument)
        elif argument not in _WITHOUT_VALUE and "=" not in argument and ".no-" not in argument:
            next(rest, None)
    # A switch has no value, so the word after it is the name.
    return words or [argument for argument in arguments if not argument.startswith("-")]


def check_words(words: Sequence[str], arguments: Sequence[str]) -> None:
    """Refuse values given to a switch as a separate word, such as `--flag false`.

    Raises:
        ConfigError: if a word belongs to no flag and is not part of `[KIND] NAME`.
    """
    stray = [word for word in words if word not in words_of(arguments)]
    if stray:
        raise ConfigError(
            f"The value {stray[0]} belongs to no flag. A switch takes no separate value: use "
            "--FLAG or --FLAG=false."
        )


def typed(command: Callable[..., Answer], arguments: Sequence[str]) -> Callable[..., Answer]:
    """Return the command with the settings of the named plugin as the type of `settings`.

    For `--help` without a name, there are no flags for settings.

    Raises:
        ConfigError: if the arguments name no plugin, or more than one.
        PluginError: if the plugin is not installed or broken.
    """
    if not words_of(arguments) and any(flag in arguments for flag in _HELP):
        command.__annotations__["settings"] = Annotated[None, Parameter(parse=False)]
        return command
    return flattened(command, named_plugin(arguments).settings_class)


def named_plugin(arguments: Sequence[str]) -> NamedPlugin:
    """Return the plugin named by the arguments of a command.

    Raises:
        ConfigError: if they name no plugin, or more than one.
        PluginError: if the plugin is not installed or broken.
    """
    entry = find_entry(words_of(arguments))
    if entry.kind not in _NAME_FLAGS:
        return NamedPlugin(entry, create_model("NoSettings"))
    path = _NAME_FLAGS[entry.kind]
    implied = [f"--{'.'.join(path).replace('_', '-')}", entry.name]
    whole = without_needless_negatives(composed_config([*arguments, *implied], {}))
    return NamedPlugin(entry, _sections(whole, entry.kind))


def find_entry(words: Sequence[str]) -> PluginEntry:
    """Return the installed plugin for `[KIND] NAME`.

    Raises:
        ConfigError: for a wrong number of words, or an unknown kind.
        PluginError: for an unknown or ambiguous name.
    """
    if len(words) == 2:  # noqa: PLR2004 - kind and name
        kind, name = words
        if kind not in KINDS:
            close = difflib.get_close_matches(kind, list(KINDS), n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ConfigError(f"There is no plugin kind '{kind}'.{hint} Kinds: {', '.join(KINDS)}.")
        return plugin_loader.find(kind, name)
    if len(words) != 1:
        raise ConfigError("Name one plugin: [KIND] NAME. `patchline plugins list` lists them.")
    entries = installed()
    matches = [entry for entry in entries if entry.name == words[0]]
    kinds = sorted({entry.kind for entry in matches})
    if len(kinds) > 1:
        raise PluginError(
            f"'{words[0]}' is the name of a {' and a '.join(kinds)}. Add the kind before the name."
        )
    if not matches:
        names = sorted({entry.name for entry in entries})
        close = difflib.get_close_matches(words[0], names, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise PluginError(f"There is no plugin '{words[0]}'.{hint} Installed: {', '.join(names)}.")
    return plugin_loader.find(matches[0].kind, matches[0].name)


def _sections(whole: type[BaseModel], kind: Kind) -> type[BaseModel]:
    """Return the settings that apply to one kind of plugin."""
    if kind in ("augmentation", "objective", "launcher"):
        return _part(whole, kind)
    data: Any = whole.model_fields["data"].annotation
    if kind == "data_source":
        return _part(whole, data=_part(data, "source", "options"))
    return _part(whole, "model", data=_part(data, "image_size"))


def _part(section: type[BaseModel], *keys: str, **classes: type[BaseModel]) -> type[BaseModel]:
    fields: dict[str, Any] = {
        key: (section.model_fields[key].annotation, section.model_fields[key]) for key in keys
    }
    fields |= {key: (value, section.model_fields[key]) for key, value in classes.items()}
    return create_model(section.__name__, __base__=ComposedModel, **fields)

"""The commands `patchline plugins list` and `patchline plugins show`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from pipeline import plugin_loader
from pipeline.errors import ConfigError, PluginError
from pipeline.plugin_loader import KINDS, PluginEntry, installed

_IMAGE_SIZE = 224


def print_list(*, as_json: bool) -> None:
    """Print what is installed."""
    entries = installed()
    if as_json:
        shown = ("kind", "name", "distribution", "version", "summary", "error")
        plugins = [{key: asdict(entry)[key] for key in shown} for entry in entries]
        print(json.dumps({"plugins": plugins}, indent=2))
        return
    kind = ""
    for entry in entries:
        if entry.kind != kind:
            kind = entry.kind
            print(f"\n{kind}" if entry is not entries[0] else kind)
        origin = f"{entry.distribution} {entry.version}"
        print(f"  {entry.name:<14} {origin:<20} {entry.error or entry.summary}")


def print_plugin(words: list[str], *, as_json: bool) -> None:
    """Print one plugin's settings, and what a model or an embedding costs."""
    entry = _entry(words)
    plugin = plugin_loader.load(entry.kind, entry.name)
    schema = plugin.config_class.model_json_schema()
    answer: dict[str, Any] = {"kind": entry.kind, "name": entry.name, "settings": schema}
    if entry.kind in ("model", "patch_embedding"):
        from pipeline.plugin_figures import choice_of_model, model_figures

        is_model = entry.kind == "model"
        choice = choice_of_model(entry.name) if is_model else choice_of_model("vit", entry.name)
        answer |= model_figures(choice, _IMAGE_SIZE).model_dump()
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    print(f"{entry.kind} {entry.name} ({entry.distribution} {entry.version})")
    print(f"{plugin.summary}{'. ' + plugin.paper if plugin.paper else ''}\n")
    for key, setting in schema.get("properties", {}).items():
        default = json.dumps(setting.get("default"))
        print(f"  {key:<20} {setting.get('description', '')} [default: {default}]")
    if "parameters" in answer:
        print(
            f"\nWith 1000 classes at {_IMAGE_SIZE} pixels: {answer['parameters']:,} parameters, "
            f"{answer['tokens']} tokens, {answer['macs']:,} multiplications an image"
        )


def _entry(words: list[str]) -> PluginEntry:
    """Return the plugin that `[KIND] NAME` means."""
    if len(words) == 2:  # noqa: PLR2004 - kind and name
        kind, name = words
        if kind not in KINDS:
            raise ConfigError(f"There is no plugin kind '{kind}'. Kinds: {', '.join(KINDS)}.")
        return plugin_loader.find(kind, name)
    if len(words) != 1:
        raise ConfigError("Name one plugin: [KIND] NAME. `patchline plugins list` shows them.")
    matches = [entry for entry in installed() if entry.name == words[0]]
    kinds = sorted({entry.kind for entry in matches})
    if len(kinds) > 1:
        raise PluginError(
            f"'{words[0]}' is a {' and a '.join(kinds)}. Put the kind in front of the name."
        )
    if not matches:
        names = sorted({entry.name for entry in installed()})
        raise PluginError(f"There is no plugin '{words[0]}'. Installed: {', '.join(names)}.")
    return plugin_loader.find(matches[0].kind, matches[0].name)

"""The command `patchline plugins show`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from patchline.flows.commands import learning_rate_curve
from patchline.flows.commands.named_plugin import (
    NamedPlugin,
    check_words,
    named_plugin,
    typed,
    words_of,
)
from patchline.flows.commands.switches import Json
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_loader import PluginEntry
from patchline.plugin_api import ToolPlugin

_IMAGE_SIZE = 224


def build_show(arguments: list[str]) -> Callable[..., None]:
    """Return the command with the settings of the named plugin as flags."""
    words_given = words_of(arguments)
    for kind in learning_rate_curve.CURVES:
        if words_given[:1] == [kind] and len(words_given) == 2:  # noqa: PLR2004 - kind and name
            return learning_rate_curve.build_curve(kind, words_given[1])

    def show(
        *words: str,
        picture: Path | None = None,
        photo: Path | None = None,
        as_json: Json = False,
        settings: Any = None,
    ) -> None:
        """Show a plugin's settings, and the cost of a model or patch embedding.

        Parameters
        ----------
        words
            [KIND] NAME of the plugin; KIND is needed only if the name is ambiguous. Settings are
            flags as in `run`: --model.size b --data.image-size 224. `schedule NAME` and
            `optimizer NAME` draw the learning rate.
        picture
            Write a picture of what a patch embedding does to a 224-pixel photo: .png, .svg or .pdf.
        photo
            The photo for --picture; by default one that ships with scikit-learn.
        settings
            Settings to compute the cost with.
        """
        check_words(words, arguments)
        plugin = named_plugin(arguments)
        if picture is None and photo is not None:
            raise ConfigError("--photo needs --picture. Add --picture FILE.png.")
        if picture is not None:
            _draw(plugin, settings, photo, picture)
        _print_plugin(plugin, settings, as_json=as_json)

    return typed(show, arguments)


def _print_plugin(named: NamedPlugin, settings: BaseModel | None, *, as_json: bool) -> None:
    entry = named.entry
    plugin = plugin_loader.load(entry.kind, entry.name)
    if isinstance(plugin, ToolPlugin):
        _print_tool(entry, plugin, as_json=as_json)
        return
    schema = plugin.config_class.model_json_schema()
    answer: dict[str, Any] = {"kind": entry.kind, "name": entry.name, "settings": schema}
    config = named.config(settings)
    image_size = config.data.image_size or _IMAGE_SIZE
    cost = None
    if entry.kind in ("model", "patch_embedding"):
        from patchline.pipeline.models.model_cost import model_cost

        cost = model_cost(config.model, image_size)
        answer |= {"image_size": image_size, **cost.model_dump()}
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    print(f"{entry.kind} {entry.name} ({entry.distribution} {entry.version})")
    print(f"{plugin.summary}{'. ' + plugin.paper if plugin.paper else ''}\n")
    given = named.own_settings(settings)
    properties = schema.get("properties", {})
    width = max((len(key) for key in properties), default=0)
    for key, setting in properties.items():
        here = f", set to {json.dumps(given[key])}" if key in given else ""
        default = json.dumps(setting.get("default"))
        text = " ".join(setting.get("description", "").split())
        print(f"  {key:<{width}}  {text} [default {default}{here}]")
    if cost is not None:
        model = " with patch embedding ".join(config.model.names)
        print(f"\n{model}, {image_size}x{image_size} pixels, 1000 classes:\n")
        print("\n".join(f"  {name:<20} {value}" for name, value in cost.rows()))


def _print_tool(entry: PluginEntry, plugin: ToolPlugin, *, as_json: bool) -> None:
    """Print what a tool adds: commands, work that schedules repeat, events, services of `up`."""
    parts = {
        "commands": {f"patchline {each.words}": each.help for each in plugin.commands},
        "schedules": {each.flag: each.help for each in plugin.work},
        "events": {each.name: each.when for each in plugin.events},
        "services": {each.flag: each.help for each in plugin.services},
    }
    if as_json:
        print(json.dumps({"kind": entry.kind, "name": entry.name, **parts}, indent=2))
        return
    print(f"{entry.kind} {entry.name} ({entry.distribution} {entry.version})")
    print(plugin.summary)
    for part, named in parts.items():
        print("\n".join([f"\n{part}", *(f"  {name}  {help_}" for name, help_ in named.items())]))


def _draw(named: NamedPlugin, settings: BaseModel | None, photo: Path | None, out: Path) -> None:
    if named.entry.kind != "patch_embedding":
        raise ConfigError(
            f"--picture works only for a patch embedding, but {named.entry.name} is a "
            f"{named.entry.kind}. Omit --picture."
        )
    from patchline.pipeline.evaluation.visual_guide.patch_embedding_picture import save_picture

    save_picture(named.entry.name, named.own_settings(settings), photo, out)
    print(f"Picture: {out}", file=sys.stderr)

"""The command `patchline plugins show`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from flows.commands.named_plugin import NamedPlugin, check_words, named_plugin, typed
from flows.commands.switches import Json
from pipeline.errors import ConfigError
from pipeline.plugin_system import plugin_loader

_IMAGE_SIZE = 224


def build(arguments: list[str]) -> Callable[..., None]:
    """Return the command, typed for the plugin that the arguments name."""

    def show(
        *words: str,
        picture: Path | None = None,
        photo: Path | None = None,
        as_json: Json = False,
        settings: Any = None,
    ) -> None:
        """Show a plugin's settings, and what a model or a patch embedding costs with them.

        Parameters
        ----------
        words
            The plugin's name, after its kind where the name alone is not clear: [KIND] NAME. Its
            settings are flags, as for `run`: --model.size b --data.image-size 224.
        picture
            Draw what a patch embedding does to a photo of 224 pixels: a .png, .svg or .pdf file.
        photo
            The photo to draw on; by default one that ships with scikit-learn.
        settings
            Settings to count with.
        """
        check_words(words, arguments)
        plugin = named_plugin(arguments)
        if picture is None and photo is not None:
            raise ConfigError("--photo is given, but not where to draw. Add --picture FILE.png.")
        if picture is not None:
            _draw(plugin, settings, photo, picture)
        _print_plugin(plugin, settings, as_json=as_json)

    return typed(show, arguments)


def _print_plugin(named: NamedPlugin, settings: BaseModel | None, *, as_json: bool) -> None:
    entry = named.entry
    plugin = plugin_loader.load(entry.kind, entry.name)
    schema = plugin.config_class.model_json_schema()
    answer: dict[str, Any] = {"kind": entry.kind, "name": entry.name, "settings": schema}
    config = named.config(settings)
    image_size = config.data.image_size or _IMAGE_SIZE
    if entry.kind in ("model", "patch_embedding"):
        from pipeline.models.model_cost import model_figures

        answer["image_size"] = image_size
        answer |= model_figures(config.model, image_size).model_dump()
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    print(f"{entry.kind} {entry.name} ({entry.distribution} {entry.version})")
    print(f"{plugin.summary}{'. ' + plugin.paper if plugin.paper else ''}\n")
    given = named.own_settings(settings)
    properties = schema.get("properties", {})
    width = max((len(key) for key in properties), default=0)
    for key, setting in properties.items():
        here = f", here {json.dumps(given[key])}" if key in given else ""
        default = json.dumps(setting.get("default"))
        text = " ".join(setting.get("description", "").split())
        print(f"  {key:<{width}}  {text} [default {default}{here}]")
    if "parameters" in answer:
        feeding = " fed by ".join(config.model.names)
        print(f"\n{feeding}, {image_size}x{image_size} pixels, 1000 classes:\n")
        print("\n".join(f"  {name:<20} {value}" for name, value in _costs(answer)))


def _draw(named: NamedPlugin, settings: BaseModel | None, photo: Path | None, out: Path) -> None:
    if named.entry.kind != "patch_embedding":
        raise ConfigError(
            f"--picture draws what a patch embedding does, but {named.entry.name} is a "
            f"{named.entry.kind}. Leave it out."
        )
    from pipeline.visual_guide.patch_embedding_picture import save_picture

    save_picture(named.entry.name, named.own_settings(settings), photo, out)
    print(f"Picture: {out}", file=sys.stderr)


def _costs(figures: dict[str, Any]) -> list[tuple[str, str]]:
    without_head = f"{figures['parameters_without_head']:,} without the head"
    tokens = f"{figures['tokens']:,}" if figures["tokens"] else "it has no patch embedding"
    return [
        ("parameters", f"{figures['parameters']:,} ({without_head})"),
        ("tokens", tokens),
        ("multiplications", f"{figures['macs'] / 1e9:.3f} G an image, forward"),
        (
            "activation memory",
            f"{figures['activation_bytes'] / 2**20:.1f} MiB an image, in training, float32",
        ),
    ]

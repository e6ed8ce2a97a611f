"""The commands `patchline plugins show` and `check`."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from pydantic import BaseModel

from flows.plugin_commands.named_plugin import NamedPlugin, check_words, named_plugin
from pipeline import plugin_loader
from pipeline.errors import ConfigError

Json = Annotated[bool, Parameter(name="--json", negative="")]
_IMAGE_SIZE = 224


def build_show(arguments: list[str]) -> Callable[..., None]:
    """Return the command `show`, typed for the plugin that the arguments name."""
    plugin = named_plugin(arguments)
    settings_class: Any = plugin.settings_class

    def show(
        *words: str,
        picture: Path | None = None,
        photo: Path | None = None,
        json: Json = False,
        settings: Any = None,
    ) -> None:
        """Show a plugin's settings, and what a model or a patch embedding costs with them.

        Parameters
        ----------
        words
            [KIND] NAME.
        picture
            Draw what a patch embedding does to a photo of 224 pixels into this file: .png, .svg or
            .pdf.
        photo
            The photo to draw on; by default one that ships with scikit-learn.
        json
            Print one JSON object.
        settings
            Settings to count with.
        """
        check_words(words, arguments)
        if picture is None and photo is not None:
            raise ConfigError("--photo is given, but not where to draw. Add --picture FILE.png.")
        if picture is not None:
            _draw(plugin, settings, photo, picture)
        _print_plugin(plugin, settings, as_json=json)

    show.__annotations__["settings"] = Annotated[settings_class | None, Parameter(name="*")]
    return show


def build_check(arguments: list[str]) -> Callable[..., int]:
    """Return the command `check`, typed for the plugin that the arguments name."""
    plugin = named_plugin(arguments)
    settings_class: Any = plugin.settings_class

    def check(
        *words: str,
        json: Json = False,
        settings: Any = None,
    ) -> int:
        """Hold a plugin against its contract; the exit code is 1 if it breaks a rule.

        Parameters
        ----------
        words
            [KIND] NAME.
        json
            Print one JSON object.
        settings
            Settings to check with.
        """
        check_words(words, arguments)
        return _print_checks(plugin, settings, as_json=json)

    check.__annotations__["settings"] = Annotated[settings_class | None, Parameter(name="*")]
    return check


def _print_plugin(named: NamedPlugin, settings: BaseModel | None, *, as_json: bool) -> None:
    entry = named.entry
    plugin = plugin_loader.load(entry.kind, entry.name)
    schema = plugin.config_class.model_json_schema()
    answer: dict[str, Any] = {"kind": entry.kind, "name": entry.name, "settings": schema}
    config = named.config(settings)
    image_size = config.data.image_size or _IMAGE_SIZE
    if entry.kind in ("model", "patch_embedding"):
        from pipeline.plugin_figures import model_figures

        answer["image_size"] = image_size
        answer |= model_figures(config.model, image_size).model_dump()
    if as_json:
        print(json_format.dumps(answer, indent=2))
        return
    print(f"{entry.kind} {entry.name} ({entry.distribution} {entry.version})")
    print(f"{plugin.summary}{'. ' + plugin.paper if plugin.paper else ''}\n")
    given = named.own_settings(settings)
    properties = schema.get("properties", {})
    width = max((len(key) for key in properties), default=0)
    for key, setting in properties.items():
        here = f", here {json_format.dumps(given[key])}" if key in given else ""
        default = json_format.dumps(setting.get("default"))
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


def _print_checks(named: NamedPlugin, settings: BaseModel | None, *, as_json: bool) -> int:
    """Run the checks, each line as soon as it is known."""
    from pipeline.plugin_checks import checks_of

    entry = named.entry
    with redirect_stdout(sys.stderr):  # what a plugin prints is not the command's answer
        plugin = plugin_loader.load(entry.kind, entry.name)
        checks = checks_of(plugin, named.only_own_settings(settings))
    stream = sys.stderr if as_json else sys.stdout
    print(f"{entry.kind} {entry.name} ({entry.distribution} {entry.version})\n", file=stream)
    width = max(len(check.name) for check in checks)
    results = []
    for check in checks:
        print(f"  {check.name:<{width}}  ", end="", file=stream, flush=True)
        with redirect_stdout(sys.stderr):
            result = check.result()
        results.append(result)
        note = {"passed": check.summary, "failed": result.message}.get(
            result.status, f"declared: {result.message}"
        )
        print(f"{result.status:<8} {result.seconds:5.1f} s  {note}", file=stream)
    counts = {
        status: sum(result.status == status for result in results)
        for status in ("passed", "excepted", "failed")
    }
    print("\n" + ", ".join(f"{count} {status}" for status, count in counts.items()), file=stream)
    if as_json:
        answer = {
            "kind": entry.kind,
            "name": entry.name,
            "passed": counts["failed"] == 0,
            "checks": [result.model_dump() for result in results],
        }
        print(json_format.dumps(answer, indent=2))
    return 1 if counts["failed"] else 0

"""The command `patchline plugins list`."""

from __future__ import annotations

import json
from dataclasses import asdict

from patchline.flows.commands.switches import Json
from patchline.pipeline.plugin_system.plugin_loader import PluginEntry, installed


def list_plugins(*, as_json: Json = False) -> None:
    """List the installed plugins without importing them."""
    entries = installed()
    if as_json:
        shown = ("kind", "name", "distribution", "version", "summary", "error")
        plugins = [{key: asdict(entry)[key] for key in shown} for entry in entries]
        print(json.dumps({"plugins": plugins}, indent=2))
        return
    widths = [
        max(len(word) for word in column) for column in zip(*map(_words, entries), strict=True)
    ]
    kind = ""
    for entry in entries:
        if entry.kind != kind:
            kind = entry.kind
            print(f"\n{kind}" if entry is not entries[0] else kind)
        name, origin = _words(entry)
        text = f"cannot be used: {entry.error}" if entry.error else entry.summary
        print(f"  {name:<{widths[0]}}  {origin:<{widths[1]}}  {text}")


def _words(entry: PluginEntry) -> tuple[str, str]:
    return entry.name, f"{entry.distribution} {entry.version}"

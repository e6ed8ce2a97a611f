"""What the argument DATA of a command stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.plugin_system.plugin_loader import installed

Settings = dict[str, Any]


def data_settings(data: str | None, source_flag: str | None) -> Settings:
    """Return what the argument DATA stands for; with `--data.source`, what that source reads."""
    if data is None:
        return {}
    if source_flag is not None:
        return {"data": {"source": source_flag, "path": data}}
    sources = {entry.name for entry in installed("data_source")}
    source, colon, name = data.partition(":")
    if colon and source in sources and not Path(data).exists():
        return {"data": {"source": source, "path": name or None}}
    if data in sources and not Path(data).exists():
        return {"data": {"source": data, "path": None}}
    return {"data": {"source": "image_folder", "path": data}}

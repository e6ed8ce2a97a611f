"""Named starting points, which override the defaults; files and flags override them."""

from __future__ import annotations

import difflib
from typing import Any

from pipeline.errors import ConfigError

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "model": {"name": "vit", "size": "micro"},
        "training": {"epochs": 20},
    },
    "balanced": {
        "model": {"name": "vit", "size": "micro"},
        "training": {"epochs": 60},
    },
    "best": {
        "model": {"name": "vit", "size": "mini", "stochastic_depth": 0.1},
        "training": {"epochs": 200},
    },
}


def preset(name: str) -> dict[str, Any]:
    """Return the settings of a preset.

    Raises:
        ConfigError: if there is no such preset.
    """
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise ConfigError(f"There is no preset '{name}'.{hint} Presets: {', '.join(PRESETS)}.")
    return PRESETS[name]

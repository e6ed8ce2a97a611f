"""Former names of functions in `pipeline.layers`; they work for one release, with a warning."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

RENAMED = {
    "pipeline.layers.stochastic_depth": {"rising_rates": "drop_path_rates"},
    "pipeline.layers.rotary_attention": {"grid_places": "grid_positions"},
}
"""Former and current names, by module."""


def old_names(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, which finds its functions under their former names."""

    def find(name: str) -> Any:
        current = RENAMED[module].get(name)
        if current is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        message = f"{name} is now called {current}; the old name will stop working. Rename it."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(module), current)

    return find

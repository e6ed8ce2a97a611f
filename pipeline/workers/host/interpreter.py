"""How Python was started."""

from __future__ import annotations

import sys

from patchline.pipeline.errors import ConfigError

_WITHOUT_DOCSTRINGS = 2
"""The level of `python -OO`."""


def check() -> None:
    """Check that docstrings are there: MLflow reads its own while it is imported.

    Raises:
        ConfigError: if Python has removed them.
    """
    if sys.flags.optimize >= _WITHOUT_DOCSTRINGS:
        raise ConfigError(
            f"Python was started with PYTHONOPTIMIZE={sys.flags.optimize} or -OO, which removes "
            "docstrings, but MLflow needs its own. Unset PYTHONOPTIMIZE, or set it to 1."
        )

"""How much this machine may keep of a shared workspace, and of data on object stores."""

from __future__ import annotations

import os
import re

from patchline.pipeline.errors import ConfigError

LIMIT_VARIABLE = "PATCHLINE_CACHE_LIMIT"
_DEFAULT_BYTES = 50 * 10**9
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?b)?", re.IGNORECASE)
PAGES_SHARE, PAGE_SHARE = 1 / 2, 1 / 8
"""Shares of the limit: what images of a store that is larger than that take while a training run
uses them, and a page of them, where one process trains on the machine."""


def limit() -> int:
    """Return the limit in bytes.

    Raises:
        ConfigError: if the variable holds no size.
    """
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not text:
        return _DEFAULT_BYTES
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{LIMIT_VARIABLE} is {text}, which is not a size. Give a number "
            "with a unit, such as 20GB."
        )
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])

"""The measuring process: `python -P -m patchline.pipeline.planning FOLDER`."""

from __future__ import annotations

import importlib

from patchline.pipeline.planning.measuring import measure
from patchline.pipeline.planning.measuring_job import MEASURING


def _get_ready() -> str:
    """Import what torch itself imports for the first optimizer."""
    importlib.import_module("torch._dynamo")
    return "{}"


if __name__ == "__main__":
    MEASURING.main(measure, _get_ready)

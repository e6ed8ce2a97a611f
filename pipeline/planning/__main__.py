"""The measuring process: `python -P -m patchline.pipeline.planning FOLDER`."""

from __future__ import annotations

import importlib

from patchline.pipeline.planning.measuring import measure
from patchline.pipeline.planning.measuring_job import MeasuringJob
from patchline.pipeline.workers.worker_process import worker_main


def _get_ready() -> str:
    """Import what most candidates need."""
    importlib.import_module("albumentations")
    return "{}"


if __name__ == "__main__":
    worker_main(MeasuringJob, measure, _get_ready)

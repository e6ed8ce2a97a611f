"""The measuring process: `python -P -m pipeline.planning FOLDER`."""

from __future__ import annotations

import importlib

from pipeline.planning.measuring import measure
from pipeline.planning.measuring_job import MeasuringJob
from pipeline.workers.worker_process import worker_main


def _get_ready() -> str:
    """Import what most candidates need."""
    importlib.import_module("albumentations")
    return "{}"


if __name__ == "__main__":
    worker_main(MeasuringJob, measure, _get_ready)

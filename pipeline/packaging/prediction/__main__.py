"""The worker for a part of the images: `python -P -m patchline.pipeline.packaging.prediction`.

The launcher of a command may place several of them, on this machine or on others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.prediction.batch_prediction import (
    PredictedPart,
    PredictionJob,
    write_rows,
)
from patchline.pipeline.packaging.prediction.image_files import ImageFile
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.missing_data import missing_data
from patchline.pipeline.workers.worker_parts import read_lines
from patchline.pipeline.workers.worker_process import worker_main


def predict_part(job: PredictionJob, events: EventWriter) -> PredictedPart:
    """Predict the images of a part into a Parquet file.

    Raises:
        DataError: if this machine does not have the data.
    """
    files = [ImageFile(*each) for each in read_lines(job.files)]
    _check_data(files)
    model = PackagedModel(job.onnx_file, job.description_file)
    write_rows(job, model, lambda done: events.progress(done, len(files), "images"))
    return PredictedPart(images=len(files), warning=model.fits.words())


def _check_data(files: Sequence[ImageFile]) -> None:
    """Refuse a part of which nothing is here: its rows would be errors, and final."""
    archives = dict.fromkeys(each.archive for each in files if each.archive)
    missing = [each for each in archives if not os.access(each, os.F_OK)]
    plain = [each.path for each in files if not each.archive and not each.error]
    if plain and not any(os.access(each, os.F_OK) for each in plain):
        missing.append(plain[0])
    if missing:
        raise missing_data(Path(missing[0]))


if __name__ == "__main__":
    worker_main(PredictionJob, predict_part)

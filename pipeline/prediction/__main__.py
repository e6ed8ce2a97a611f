"""The worker that predicts a part of the images: `python -P -m patchline.pipeline.prediction`."""

from __future__ import annotations

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.prediction.batch_prediction import write_rows
from patchline.pipeline.prediction.prediction_job import PredictedPart, PredictionJob
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.part_files import read_lines
from patchline.pipeline.workers.worker_process import worker_main


def predict_part(job: PredictionJob, events: EventWriter) -> PredictedPart:
    """Predict the images of a part into a Parquet file."""
    model = PackagedModel(job.onnx_file, job.description_file)
    images = sum(1 for _ in read_lines(job.files))
    write_rows(job, model, lambda done: events.progress(done, images, "images"))
    return PredictedPart(images=images, warning=model.fits.words())


if __name__ == "__main__":
    worker_main(PredictionJob, predict_part)

"""The packaging worker: `python -P -m pipeline.packaging FOLDER`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from pipeline.data import manifest as manifests
from pipeline.data.prepared_store import open_images
from pipeline.files.atomic_files import write_text
from pipeline.models.model_description import WEIGHTS_FILE
from pipeline.models.model_files import load_model, save_model
from pipeline.models.onnx_export import write_onnx
from pipeline.packaging.calibrated_onnx import (
    FeatureModel,
    ProbabilityModel,
    export_onnx,
    largest_difference,
)
from pipeline.packaging.job import Package, PackagingJob
from pipeline.packaging.model_card import model_card
from pipeline.packaging.standalone_file import write_model_server
from pipeline.provenance.weights_record import provenance_of
from pipeline.workers.event_log import EventWriter
from pipeline.workers.worker_process import worker_main

_CHECKED_IMAGES = 256


def package(job: PackagingJob, _events: EventWriter) -> Package:
    """Write the package and its model card; compare its predictions with the trained model's."""
    model, description = load_model(job.model_folder)
    description = description.model_copy(update={"temperature": job.temperature})
    provenance = provenance_of(job.model_folder / WEIGHTS_FILE, "the trained model")
    save_model(job.folder, model, description, provenance)
    whole: ProbabilityModel | FeatureModel
    if description.classes:
        whole = ProbabilityModel(model, description.image, job.temperature).eval()
    else:
        whole = FeatureModel(model, description.image).eval()
    onnx_file = job.folder / "model.onnx"
    export_onnx(whole, onnx_file)
    write_model_server(job.folder / "model_server.py")
    table = manifests.usable(manifests.load(job.manifest_file))
    rows = np.flatnonzero(table["split"] == "test")[:_CHECKED_IMAGES]
    difference = largest_difference(whole, onnx_file, open_images(job.store)[rows])
    outputs = "probabilities" if description.classes else "features"
    card = model_card(
        description,
        job.card,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        provenance=provenance.summary,
        check=f"{outputs} differ by at most {difference:.1g} on {len(rows)} test images",
    )
    write_text(job.folder / "model_card.md", card)
    size = sum(file.stat().st_size for file in job.folder.iterdir() if file.is_file())
    return Package(
        folder=job.folder, largest_difference=difference, checked_images=len(rows), bytes=size
    )


def _rehearse() -> str:
    """Export a tiny model, so that the exporter has imported everything it needs."""
    with tempfile.TemporaryDirectory() as scratch:
        nothing, example = torch.nn.Identity(), torch.zeros(2, 1)
        file = Path(scratch) / "rehearsal.onnx"
        write_onnx(nothing, example, file, input_name="input", output_name="output")
    return "{}"


if __name__ == "__main__":
    worker_main(PackagingJob, package, _rehearse)

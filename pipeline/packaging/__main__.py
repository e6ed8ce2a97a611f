"""The packaging worker: `python -P -m patchline.pipeline.packaging FOLDER`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store.opened_images import open_images
from patchline.pipeline.models.model_description import WEIGHTS_FILE, load_description
from patchline.pipeline.models.model_files import load_model, save_model
from patchline.pipeline.models.onnx_export import write_onnx
from patchline.pipeline.models.provenance import provenance_of
from patchline.pipeline.packaging.agreement import (
    TOLERANCE,
    inner_differences,
    largest_difference,
    measure_reported_difference,
)
from patchline.pipeline.packaging.calibrated_onnx import FeatureModel, ProbabilityModel, export_onnx
from patchline.pipeline.packaging.job import PACKAGING, Package, PackagingJob
from patchline.pipeline.packaging.model_card import model_card
from patchline.pipeline.packaging.package_digests import write_digests
from patchline.pipeline.packaging.package_files import (
    CARD_FILE,
    DIGESTED,
    ONNX_FILE,
    REFERENCE_FILE,
    REFERENCE_IMAGES_FILE,
    SERVER_FILE,
)
from patchline.pipeline.packaging.package_latency import (
    BATCH_SIZES,
    PackageLatency,
    package_latency,
)
from patchline.pipeline.packaging.standalone_file import write_model_server
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.sealed_files import digest_of

_COMPARED_INSIDE = 16
"""Test images on which the inner values of the package are compared with torch's."""


def package(job: PackagingJob, events: EventWriter) -> Package:
    """Write the package and its model card; compare its outputs with the report's, or torch's."""
    model, description = load_model(job.model_folder)
    description = type(description).model_validate({**dict(description), **job.described})
    provenance = provenance_of(job.model_folder / WEIGHTS_FILE, "the trained model")
    save_model(job.folder, model, description, provenance)
    whole: ProbabilityModel | FeatureModel
    if description.classes:
        whole = ProbabilityModel.of(model, description).eval()
    else:
        whole = FeatureModel(model, description.image).eval()
    onnx_file = job.folder / ONNX_FILE
    export_onnx(whole, onnx_file)
    if isinstance(whole, ProbabilityModel):
        _check_inner_outputs(job, whole, onnx_file, events)
    if job.reference is not None:
        shutil.copyfile(job.reference, job.folder / REFERENCE_FILE)
    if job.reference_images is not None:
        shutil.copyfile(job.reference_images, job.folder / REFERENCE_IMAGES_FILE)
    write_model_server(job.folder / SERVER_FILE)
    difference, images = _compare(job, whole, onnx_file, events)
    latency = _latency(job, onnx_file, events)
    outputs = "probabilities" if description.classes else "features"
    others = "the reported ones" if job.reported else "torch's"
    card = model_card(
        description,
        job.card,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        provenance=provenance.summary,
        check=f"{outputs} of all {images:,} test images differ from {others} by at most "
        f"{difference:.1g}",
        latency=latency.sentence() if latency else "",
    )
    write_text(job.folder / CARD_FILE, card)
    write_digests(job.folder, DIGESTED)
    size = sum(file.stat().st_size for file in job.folder.iterdir() if file.is_file())
    return Package(
        folder=job.folder,
        largest_difference=difference,
        checked_images=images,
        bytes=size,
        latency=latency,
        reported_sha256=digest_of(job.reported).sha256 if job.reported else "",
    )


def _latency(job: PackagingJob, onnx_file: Path, events: EventWriter) -> PackageLatency | None:
    """Return how long batches of the store's images take; None if it has none."""
    images = open_images(job.store)
    if not len(images):
        return None
    latency = package_latency(onnx_file, np.array(images[: BATCH_SIZES[-1]]))
    events.write("note", message=latency.sentence())
    return latency


def _check_inner_outputs(
    job: PackagingJob, model: ProbabilityModel, onnx_file: Path, events: EventWriter
) -> None:
    """Compare the inner values with torch's on some test images; leave out those that differ."""
    table = manifests.usable(manifests.load(job.manifest_file))
    rows = np.flatnonzero(table["split"] == "test")[:_COMPARED_INSIDE]
    differences = inner_differences(model, onnx_file, open_images(job.store), rows)
    wrong = [name for name, value in differences.items() if not value <= TOLERANCE]
    if not wrong:
        return
    export_onnx(model, onnx_file, without=wrong)
    named = " and ".join(f"`{name}` by {differences[name]:.2g}" for name in wrong)
    events.write(
        "note",
        message=f"the exported model differs from torch in {named}, more than the "
        f"{TOLERANCE:g} allowed: the package has no such output",
    )


def _compare(
    job: PackagingJob,
    model: ProbabilityModel | FeatureModel,
    onnx_file: Path,
    events: EventWriter,
) -> tuple[float, int]:
    """Return the largest difference on all test images, and their number."""
    images = open_images(job.store)

    def on_progress(done: int, total: int) -> None:
        events.progress(done, total, "image")

    if job.reported is None:
        table = manifests.usable(manifests.load(job.manifest_file))
        rows = np.flatnonzero(table["split"] == "test")
        return largest_difference(model, onnx_file, images, rows, on_progress), len(rows)
    wanted = ["path", "split", "row", "probabilities"]
    table = pd.read_parquet(job.reported, columns=wanted, filters=[("split", "==", "test")])
    classes = load_description(job.folder).classes
    return measure_reported_difference(onnx_file, images, table, classes, on_progress), len(table)


def _rehearse() -> str:
    """Export a tiny model, so that the exporter has imported everything it needs."""
    with tempfile.TemporaryDirectory() as scratch:
        nothing, example = torch.nn.Identity(), torch.zeros(2, 1)
        file = Path(scratch) / "rehearsal.onnx"
        write_onnx(nothing, example, file, input_name="input", output_names=["output"])
    return "{}"


if __name__ == "__main__":
    PACKAGING.main(package, _rehearse)

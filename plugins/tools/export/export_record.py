"""What is known about an export: `export.json`, in words, and the sentence if it is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.metrics.label_calibration import LabelCalibration
from patchline.pipeline.evaluation.metrics.temperature import recorded
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.packaging.processor_check import RECORD_FILE
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.plugins.tools.export.comparison import (
    LEAST_AGREEMENT,
    Agreement,
    BatchLatency,
    percent,
)
from patchline.plugins.tools.export.container_files import ServedVersion


class ProcessorRecord(FrozenModel):
    """The processor that an export was measured on."""

    name: str
    instructions: tuple[str, ...]


class TriedForm(FrozenModel):
    """One way to make a form, with what was measured."""

    name: str
    """Such as `int8, static, 8-bit weights`."""
    details: dict[str, str]
    agreement: Agreement
    bytes: int
    """Size of its model files."""
    latency: tuple[BatchLatency, ...] = ()
    """Empty if it is refused."""

    @property
    def speedup(self) -> float:
        """Geometric mean over the batch sizes of how many times as fast as the package it is."""
        product = 1.0
        for each in self.latency:
            product *= each.speedup
        return float(product ** (1 / len(self.latency))) if self.latency else 0.0


class ExportRecord(FrozenModel):
    """An export: what it is, how it was measured, and what it was chosen from."""

    format_version: int = 1
    model: str
    version: str
    form: str
    compared_on: str
    """The images, such as `286 test images of its run`."""
    package_bytes: int
    """Size of `model.onnx`."""
    allowed_difference: float
    """Largest allowed difference in probability."""
    processor: ProcessorRecord
    threads: int
    """That each latency was measured with."""
    libraries: dict[str, str]
    """Versions of the libraries that compute."""
    chosen: TriedForm | None
    """None if the export is refused."""
    tried: tuple[TriedForm, ...]
    stored_images: int = 0
    """Number of compared images in `processor_check.npz`."""

    @property
    def refusal(self) -> str:
        """Why nothing was written; empty if something was."""
        if self.chosen is not None:
            return ""
        reasons = [
            f"{each.name}: {', and '.join(each.agreement.failures)} ({each.agreement.accuracies})"
            for each in self.tried
        ]
        return (
            f"The form {self.form} of {self.model}, version {self.version}, is refused, because it "
            f"does not agree with the package on {self.compared_on}. {'; '.join(reasons)}. Use the "
            "package itself, or another form."
        )

    def save(self, folder: Path) -> None:
        """Write the record."""
        self.to_file(folder / RECORD_FILE)


_ONNX = """\
import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before onnxruntime is imported
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
images = np.zeros({shape}, np.uint8)  # batch, height, width, channels
probabilities = session.run(["probabilities"], {{"images": images}})[0]
"""
_OPENVINO = """\
import sys

sys.modules["openvino_telemetry"] = None  # or OpenVINO reports its import to its maker
import numpy as np
import openvino

precision = {{"INFERENCE_PRECISION_HINT": "{precision}"}}
model = openvino.Core().compile_model("model.xml", "CPU", precision)
images = np.zeros({shape}, np.uint8)  # batch, height, width, channels
probabilities = model(images)["probabilities"]
"""
_TORCH = """\
import torch

model = torch.export.load("model.pt2").module()
images = torch.zeros({shape}, dtype=torch.uint8)  # batch, height, width, channels
probabilities = model(images)
"""
_CONTAINER = """\
# {record.model}, version {record.version}, as a container image

The folder holds the server of `patchline serve` without a registry, in `app/`; the package, in
`model/`; and everything to build and run an image. It writes nothing, runs as a user without
rights, and needs neither torch nor MLflow.

```text
docker build -t {image} .
export PATCHLINE_SERVE_TOKEN=$(openssl rand -hex 32)
docker run --read-only --cap-drop ALL --security-opt no-new-privileges -p 127.0.0.1:8080:8080 \\
  -e PATCHLINE_SERVE_TOKEN {image}
curl -H "Authorization: Bearer $PATCHLINE_SERVE_TOKEN" --data-binary @photo.jpg \\
  http://127.0.0.1:8080/predict
```

On Kubernetes, put the image into a registry that the cluster reads, and its name into `image` of
`kubernetes.yaml`, or of `kserve.yaml` for KServe. Then:

```text
kubectl create secret generic {resource}-token --from-literal=token=$(openssl rand -hex 32)
kubectl apply -f kubernetes.yaml
```

Clients send the token, and call the server by a name in `args` (`--allowed-host`): add those of
your namespace and ingress. Probes of health need neither. `requirements.txt` pins every library
that the server was started with; the base image is named by its tag, so pin its digest for builds
that are the same each time.

```text
{table}
```

{noted}
"""
_SETS = """\
the probabilities, one
for each label, are calibrated, in the order of `classes` there. An image has the labels whose
probability is at least that in `thresholds` there."""
_CODE = {"onnx": _ONNX, "int8": _ONNX, "openvino": _OPENVINO, "torch": _TORCH}
_FOR_SPEED = ("int8", "openvino")
_NEEDS = {
    "onnx": "onnxruntime and numpy",
    "int8": "onnxruntime and numpy",
    "openvino": "openvino and numpy",
    "torch": "torch, and neither Patchline nor the plugins that the model was built with",
}


def table(record: ExportRecord) -> list[str]:
    """Return what was measured, one line for each figure."""
    chosen = record.chosen
    lines = [f"Compared with the package on {record.compared_on}"]
    for each in record.tried:
        mark = "written" if each is chosen else "passed" if each.agreement.passed else "refused"
        lines += [f"{each.name} ({mark})", *(f"  {line}" for line in _measured(record, each))]
    return lines


def _measured(record: ExportRecord, tried: TriedForm) -> Iterator[str]:
    agreement = tried.agreement
    labels = agreement.labels
    same = "same labels" if agreement.is_multi_label else "same label"
    yield f"{same:<17}{_with_interval(labels)}"
    if agreement.largest_difference is not None and agreement.mean_difference is not None:
        yield (
            f"probabilities    differ by at most {agreement.largest_difference:.2g}, by "
            f"{agreement.mean_difference:.2g} on average"
        )
    yield (
        f"{agreement.measure:<17}{_with_interval(agreement.form_accuracy)}, package "
        f"{_with_interval(agreement.package_accuracy)}"
    )
    yield f"size             {_size(tried.bytes)}, package {_size(record.package_bytes)}"
    for each in tried.latency:
        yield (
            f"batch of {each.batch_size:<2}      {each.form_milliseconds:.1f} ms, package "
            f"{each.package_milliseconds:.1f} ms: {each.speedup:.2f} times as fast"
        )


def notes(record: ExportRecord) -> list[str]:
    """Return what a person should know about an export that was written."""
    chosen = record.chosen
    if chosen is None:
        return []
    found, labels = [], chosen.agreement.labels
    if labels.low < LEAST_AGREEMENT:
        found.append(
            f"{labels.n:,} images cannot show that {_the_label_is(chosen)} the same on at least "
            f"{LEAST_AGREEMENT:.1%} of all images: the 95% interval begins at {percent(labels.low)}"
        )
    if record.form in _FOR_SPEED and chosen.speedup < 1:
        found.append(
            f"this form is not faster than the package on this processor "
            f"({record.processor.name}): {chosen.speedup:.2f} times as fast"
        )
    if chosen.details.get("method") == "dynamic":
        found.append(
            "the range of int8 activations is that of the batch, so the probabilities of an image "
            "depend slightly on the other images of its batch"
        )
    if record.stored_images:
        found.append(
            f"the folder holds {record.stored_images} of these images as pixels, which a server "
            "predicts again when it starts; do not publish it if they are confidential"
        )
    return found


def _the_label_is(tried: TriedForm) -> str:
    return "all labels are" if tried.agreement.is_multi_label else "the label is"


def write_readme(folder: Path, record: ExportRecord) -> None:
    """Write how to load the export, and what was measured."""
    if record.form == "container":
        write_text(folder / "README.md", _about_container(record))
        return
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    image = description["image"]
    shape = (1, image["height"], image["width"], image["channels"])
    chosen = record.chosen
    precision = chosen.details.get("precision", "") if chosen else ""
    code = _CODE[record.form].format(shape=shape, precision=precision)
    colours = "grey" if image["channels"] == 1 else "RGB"
    versions = ", ".join(f"{name} {version}" for name, version in record.libraries.items())
    noted = "\n".join(f"- {_sentence(note)}" for note in notes(record))
    text = f"""\
# {record.model}, version {record.version}, as {record.form}

It needs {_NEEDS[record.form]} (measured with {versions}). Images are {colours}, uint8, resized as
`image` in `model.json` says; {_probabilities(description)}

```python
{code}```

Measured on {record.processor.name}, with {record.threads} thread (`export.json` has all of it):

```text
{chr(10).join(table(record))}
```

{noted}
"""
    write_text(folder / "README.md", f"{text.strip()}\n")


def _probabilities(description: dict[str, Any]) -> str:
    if description.get("task") == MULTI_LABEL:
        found = description.get("label_calibration")
        fits = LabelCalibration.model_validate(found) if found else None
        return _SETS if fits and fits.is_calibrated else _SETS.replace(" are calibrated,", "")
    fit = recorded(description.get("calibration"), description.get("temperature", 1.0))
    calibrated = "are calibrated" if fit.is_calibrated else f"({fit.sentence()})"
    return f"the probabilities {calibrated}, in the order of `classes` there."


def _about_container(record: ExportRecord) -> str:
    served = ServedVersion(record.model, record.version)
    text = _CONTAINER.format(
        record=record,
        image=served.image,
        resource=served.resource,
        table="\n".join(table(record)),
        noted="\n".join(f"- {_sentence(note)}" for note in notes(record)),
    )
    return f"{text.strip()}\n"


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."


def _with_interval(estimate: MetricEstimate) -> str:
    return (
        f"{percent(estimate.value)} of {estimate.n:,} (95% interval {percent(estimate.low)} to "
        f"{percent(estimate.high)})"
    )


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"

"""A form is written if it agrees with the package, and refused with numbers if not."""

from __future__ import annotations

import importlib.util
import json
import pickletools
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.processor_check import check_on_this_processor
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.pipeline.registry.serving.checked_package import PackageRefusedError, check_package
from patchline.pipeline.workers.host.processors import Processor
from patchline.plugins.tools.export import exporting
from patchline.plugins.tools.export.comparison import ComparisonImages
from patchline.plugins.tools.export.export_pages import ExportRecord
from patchline.plugins.tools.export.exporting import Form, export
from tests.pipeline.conftest import CLASSES, Exported

REFERENCE = ModelReference("stripes", "3", "models:/m-1")
FORMS: tuple[Form, ...] = ("onnx", "int8", "torch")
if importlib.util.find_spec("openvino"):
    FORMS += ("openvino",)
_AS_SHOWN = """
import json, os, sys
from pathlib import Path
for folder in sys.argv[1:]:
    os.chdir(folder)
    names = {}
    exec(Path("README.md").read_text().split("```python\\n")[1].split("```")[0], names)
    print("answer", json.dumps(names["probabilities"].tolist()))
assert "patchline" not in sys.modules
"""


class Written(NamedTuple):
    """A form that was written, and what the code of its README answers."""

    record: ExportRecord
    out: Path
    answer: list[list[float]]


def _export(exported: Exported, form: Form, images: ComparisonImages, out: Path) -> ExportRecord:
    source = exported.onnx_file.parent
    return export(REFERENCE, form, images, out, lambda *_: None, source=source, seconds=0.01)


@pytest.fixture(scope="module")
def written(
    exported_rgb: Exported, photos: ComparisonImages, tmp_path_factory: pytest.TempPathFactory
) -> dict[Form, Written]:
    """Return all forms; one process without Patchline has run what their READMEs show."""
    folder = tmp_path_factory.mktemp("written")
    records = [_export(exported_rgb, form, photos, folder / form) for form in FORMS]
    assert {each.name for each in folder.iterdir()} == {*FORMS}  # nothing else is left
    command = [sys.executable, "-I", "-c", _AS_SHOWN, *(str(folder / form) for form in FORMS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("answer ")]
    return {
        form: Written(record, folder / form, json.loads(line.removeprefix("answer ")))
        for form, record, line in zip(FORMS, records, lines, strict=True)
    }


@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_agrees_is_written_and_loads_as_its_readme_says(
    form: Form, exported_rgb: Exported, written: dict[Form, Written]
) -> None:
    """The README's code answers what is recorded.

    A float32 form needs no check, so its folder holds no image of anybody; a torch program holds
    no pickle.
    """
    record, out, [row] = written[form]
    assert record.chosen is not None, record.refusal
    assert record.chosen.agreement.labels.value >= 0.995
    assert record.chosen.agreement.labels.n == 96
    assert [each.batch_size for each in record.chosen.latency] == [1, 8, 32]
    assert ExportRecord.model_validate_json((out / "export.json").read_text()) == record
    package = PackagedModel(exported_rgb.onnx_file, exported_rgb.description_file, 1)
    [expected] = package.probabilities(np.zeros((1, 16, 16, 3), np.uint8))
    assert row == pytest.approx(expected.tolist(), abs=record.allowed_difference)
    if form == "onnx":
        assert record.stored_images == 0
        assert check_on_this_processor(out, lambda images: images) is None
        names = {"model.onnx", "model.json", "export.json", "README.md", "digests.json"}
        assert {file.name for file in out.iterdir()} == names
    if form == "torch":
        with zipfile.ZipFile(out / "model.pt2") as archive:
            for name in archive.namelist():
                content = archive.read(name)
                assert b"data.pkl" not in content, name
                with pytest.raises(ValueError, match=r"."):
                    list(pickletools.genops(content))


def test_an_int8_export_serves_as_a_package_and_checks_the_processor(
    written: dict[Form, Written], photos: ComparisonImages, tmp_path: Path
) -> None:
    """It opens like a package; the check passes here, and fails for what others answer.

    A server refuses it with the difference where it answers otherwise than it did.
    """
    assert written["int8"].record.processor.name
    out = shutil.copytree(written["int8"].out, tmp_path / "out")
    model = PackagedModel(out / "model.onnx", out / "model.json", 1)
    answers = model.answers_to(list(photos.images_NHWC), len(CLASSES))
    agreeing = [answer["label"] == CLASSES[label] for answer, label in zip(
        answers, photos.labels_N, strict=True)]  # fmt: skip
    assert np.mean(agreeing) >= 0.97
    same = check_on_this_processor(out, model.probabilities)
    assert same is not None
    assert same.passed
    assert same.images == 32
    assert same.largest_difference == pytest.approx(0, abs=1e-4)
    other = check_on_this_processor(out, lambda images: model.probabilities(images)[:, ::-1])
    assert other is not None
    assert not other.passed
    assert "export it again on this processor" in other.finding
    assert check_package(out, 1).package.classes == list(CLASSES)
    file = out / "processor_check.npz"
    with np.load(file, allow_pickle=False) as stored:
        images, probabilities = stored["images"], stored["probabilities"]
    np.savez_compressed(file, images=images, probabilities=probabilities[::-1])
    (out / "digests.json").unlink()  # else the changed file is refused before
    with pytest.raises(
        PackageRefusedError, match=r"on this processor .* more than the 0\.15 allowed"
    ):
        check_package(out, 1)
    file.write_bytes(b"damaged")
    with pytest.raises(PackageRefusedError, match="its check of the processor is damaged"):
        check_package(out, 1)


def test_a_torch_program_that_computes_something_else_is_refused(
    exported_rgb: Exported, photos: ComparisonImages, tmp_path: Path
) -> None:
    """The package's weights file is another model's: even a label in common does not save it."""
    shutil.copytree(exported_rgb.onnx_file.parent, tmp_path / "package")
    description = tmp_path / "package" / "model.json"
    described = json.loads(description.read_text())
    described["temperature"] = described["temperature"] * 1.01
    description.write_text(json.dumps(described))
    other = exported_rgb._replace(onnx_file=tmp_path / "package" / "model.onnx")
    record = _export(other, "torch", photos, tmp_path / "out")
    assert record.chosen is None
    assert record.tried[0].agreement.labels.value == 1.0
    assert "at most 0.0001 is allowed" in record.refusal


def test_a_processor_without_int8_products_gets_seven_bits(
    exported_rgb: Exported,
    photos: ComparisonImages,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where products are added in 16 bits, no weight uses its eighth bit."""
    plain = Processor("plain", ("avx2",))
    monkeypatch.setattr(exporting, "this_processor", lambda: plain)
    record = _export(exported_rgb, "int8", photos, tmp_path / "out")
    assert {each.details["weight_bits"] for each in record.tried} == {"7"}
    if record.chosen is not None:
        network = onnx.load(str(tmp_path / "out" / "model.onnx"))
        weights = [numpy_helper.to_array(each) for each in network.graph.initializer]
        eight_bits = [each for each in weights if each.dtype == np.int8 and each.ndim > 1]
        assert eight_bits
        assert max(int(np.abs(each.astype(int)).max()) for each in eight_bits) <= 64


@pytest.fixture
def labelled(exported_sets: Exported, photos: ComparisonImages) -> ComparisonImages:
    """Return the photos with the label sets that the multi-label package gives."""
    package = PackagedModel(exported_sets.onnx_file, exported_sets.description_file, 1)
    assert package.thresholds_K is not None
    given = package.probabilities(photos.images_NHWC) >= package.thresholds_K
    return replace(photos, labels_N=given.astype(np.uint8))


@pytest.mark.parametrize("form", ["onnx", "int8"])
def test_a_form_of_a_multi_label_model_keeps_its_labels(
    form: Form, exported_sets: Exported, labelled: ComparisonImages, tmp_path: Path
) -> None:
    """Sets of labels are compared, not the most probable one; the README tells of thresholds."""
    record = _export(exported_sets, form, labelled, tmp_path / "out")
    assert record.chosen is not None, record.refusal
    assert record.chosen.agreement.package_accuracy.value == 1
    assert record.chosen.agreement.labels.value >= 0.995
    readme = (tmp_path / "out" / "README.md").read_text()
    for words in ("same labels      ", "exact match      ", "`thresholds`"):
        assert words in readme

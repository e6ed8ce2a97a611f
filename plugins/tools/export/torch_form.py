"""The trained model as a program of torch.export: loads with torch alone, without its plugins."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.errors import PackagingError
from patchline.pipeline.packaging.package_files import DESCRIPTION_FILE
from patchline.plugins.tools.export.comparison import EXACT, Answers, ExportCandidate, FormInputs

Array = np.ndarray[Any, Any]
PROGRAM_FILE = "model.pt2"


def torch_candidates(inputs: FormInputs) -> Iterator[ExportCandidate]:
    """Yield the program: uint8 images (B, H, W, C) in, calibrated probabilities (B, K) out.

    Raises:
        PackagingError: if torch cannot export the model.
        PluginError: if a plugin of the model is not installed.
    """
    import torch

    from patchline.pipeline.models.model_files import load_model
    from patchline.pipeline.packaging.calibrated_onnx import ProbabilityModel

    model, description = load_model(inputs.package_folder)
    whole = ProbabilityModel.of(model, description).eval()
    image = description.image
    example = torch.zeros((2, image.height, image.width, image.channels), dtype=torch.uint8)
    folder = inputs.scratch / "torch"
    folder.mkdir()
    (folder / DESCRIPTION_FILE).write_bytes((inputs.package_folder / DESCRIPTION_FILE).read_bytes())
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            batch = torch.export.Dim("batch")
            program = torch.export.export(whole, (example,), dynamic_shapes=({0: batch},))
            program.example_inputs = None  # would be stored as a pickle
            torch.export.save(program, folder / PROGRAM_FILE)
        except Exception as error:  # torch documents no class for what it cannot export
            reason = str(error).strip().splitlines() or ["no message"]
            raise PackagingError(
                f"The model cannot be exported with torch.export: {reason[0][:300]}. Choose "
                "another form with --to."
            ) from error
    _check_without_pickle(folder / PROGRAM_FILE)
    yield ExportCandidate(
        name="torch",
        folder=folder,
        model_files=(PROGRAM_FILE,),
        open=partial(_loaded, folder / PROGRAM_FILE),
        bounds=EXACT,
        details={"precision": "float32"},
        libraries=("torch",),
    )


def _check_without_pickle(file: Path) -> None:
    """Raise an error if the archive holds a pickle."""
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            if name.endswith(".pt") and content:
                raise PackagingError(
                    f"torch stores {name} of the exported program as a pickle, which Patchline "
                    "does not write. Choose another form with --to."
                )


def _loaded(file: Path, threads: int) -> Answers:
    """Return a function that answers with the program that was written."""
    import torch

    program = torch.export.load(file).module()
    before = torch.get_num_threads()

    def answers(images_NHWC: Array) -> Array:
        torch.set_num_threads(threads or before)
        try:
            with torch.inference_mode():
                images = torch.from_numpy(np.ascontiguousarray(images_NHWC))
                outputs: Array = program(images).numpy()
        finally:
            torch.set_num_threads(before)
        return outputs

    return answers

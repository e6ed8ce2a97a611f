"""Save and load a model: `model.safetensors` for the weights, `model.json` for everything else."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from patchline.pipeline.models.calibrated_models import Ensemble, scale_by_class
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import (
    DESCRIPTION_FILE,
    WEIGHTS_FILE,
    ModelDescription,
    load_description,
)
from patchline.pipeline.models.provenance import Provenance, as_metadata
from patchline.pipeline.workspace.files.sealed_files import read_tensors, write_tensors


def save_model(
    folder: Path,
    model: nn.Module,
    description: ModelDescription,
    provenance: Provenance | None = None,
) -> None:
    """Write weights and description into a folder; each file is whole or absent.

    Args:
        folder: receives `model.safetensors` and `model.json`.
        model: the model that is saved.
        description: the description of the model.
        provenance: the images that the weights have seen, written into the file of the weights;
            None if that is not known.
    """
    record = as_metadata(provenance or Provenance.without_record())
    write_tensors(folder / WEIGHTS_FILE, model.state_dict(), record)
    description.to_file(folder / DESCRIPTION_FILE)


def load_model(folder: Path) -> tuple[nn.Module, ModelDescription]:
    """Rebuild a saved model through its plugins, in evaluation mode, on the CPU.

    Raises:
        DamagedFileError: if the weights are not what was written.
    """
    description = load_description(folder)
    weights, _ = read_tensors(folder / WEIGHTS_FILE)
    built = [
        build_model(description.model, description.image, len(description.classes))
        for _ in range(description.members)
    ]
    model = built[0]
    if len(built) > 1:
        count = len(description.classes)
        scale_by_class(weights, count)
        model = Ensemble(built, [description.logit_calibration] * len(built), count)
    model.load_state_dict(weights)
    return model.eval(), description

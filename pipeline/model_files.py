"""Save and load a model: `model.safetensors` for the weights, `model.json` for everything else."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import nn

from pipeline.atomic_files import replacing, write_text
from pipeline.model_building import build_model
from pipeline.model_description import DESCRIPTION_FILE, ModelDescription, load_description

WEIGHTS_FILE = "model.safetensors"


def save_model(folder: Path, model: nn.Module, description: ModelDescription) -> None:
    """Write weights and description into a folder; each file is whole or absent."""
    # safetensors refuses tensors that share memory, so tied weights are written twice
    weights = {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in model.state_dict().items()
    }
    with replacing(folder / WEIGHTS_FILE) as temporary:
        save_file(weights, temporary)
    write_text(folder / DESCRIPTION_FILE, description.model_dump_json(indent=2) + "\n")


def load_model(folder: Path) -> tuple[nn.Module, ModelDescription]:
    """Rebuild a saved model through its plugins, in evaluation mode, on the CPU."""
    description = load_description(folder)
    model = build_model(description.model, description.image, len(description.classes))
    model.load_state_dict(load_file(folder / WEIGHTS_FILE))
    return model.eval(), description
